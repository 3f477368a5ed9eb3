"""What tests of every part may ask for."""

import os

import pytest


@pytest.fixture(scope="session")
def real_model() -> str:
    """Directory of the default model. Tests skip without it, unless $QUAIL_SPARK_REQUIRE_MODEL is set (in CI)."""
    from quail_spark.errors import ModelError
    from quail_spark.models import default_model

    try:
        return default_model()
    except ModelError as error:
        if os.environ.get("QUAIL_SPARK_REQUIRE_MODEL"):
            raise
        pytest.skip(f"the default model is not here: {error}")
