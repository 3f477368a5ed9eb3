"""What the scripted engine was asked, seen from the driver."""

from collections import Counter

from quail_spark.conf import QuailConf
from quail_spark.engine.client import connect
from quail_spark.engines import resolve_device, resolve_model


def calls(spark, tag: str) -> Counter:
    """How often the model was asked each (template, texts), for templates that contain `tag`."""
    conf = QuailConf.of_session(spark)
    config = conf.engine(model=resolve_model(conf["model"]), device=resolve_device(conf["device"]))
    client = connect(config, spark.sparkContext.applicationId)
    try:
        made = client.describe()["calls"]
    finally:
        client.close()
    return Counter({(template, tuple(texts)): n for template, texts, n in made if tag in template})
