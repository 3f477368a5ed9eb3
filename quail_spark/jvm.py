"""Classes of `quail_spark/java/`, compiled at run time inside the driver's JVM by Janino, which Spark ships. Driver-side.

No jar and no javac: a class is compiled when it is first loaded, together with the classes of the folder that it names.
Janino reads Java without generics inference or lambdas; write raw types.
"""

from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

from quail_spark.optimizer.errors import SetupError

JAVA_PACKAGE = "org.quailspark"

_loaders: WeakKeyDictionary = WeakKeyDictionary()  # py4j gateway -> java.lang.ClassLoader


def java_class(spark, name: str) -> Any:
    """The `java.lang.Class` of `org.quailspark.<name>`. `spark` is a classic session.

    Raises SetupError when the JVM can't compile it.
    """
    from py4j.protocol import Py4JJavaError

    gateway = spark.sparkContext._gateway
    if gateway not in _loaders:
        _loaders[gateway] = _source_class_loader(gateway.jvm)
    try:
        return _loaders[gateway].loadClass(f"{JAVA_PACKAGE}.{name}")
    except Py4JJavaError as error:
        raise SetupError(
            f"Spark's JVM could not compile quail_spark/java/{name}.java; accepted: the Spark versions that the README "
            f"names, with their own janino jar. The JVM says: {error.java_exception}"
        ) from error


def new_instance(spark, name: str, *arguments: Any) -> Any:
    """`new org.quailspark.<name>(arguments…)` through the class's only constructor. Python proxies may be arguments."""
    constructor = java_class(spark, name).getConstructors()[0]
    values = spark.sparkContext._gateway.jvm.java.util.ArrayList()
    for argument in arguments:  # py4j can't put a Python proxy into an array, but into a list
        values.add(argument)
    return constructor.newInstance(values.toArray())


def _source_class_loader(jvm: Any) -> Any:
    sources = jvm.java.util.HashMap()
    for source in files("quail_spark").joinpath("java").iterdir():
        if source.name.endswith(".java"):
            sources.put(f"{JAVA_PACKAGE.replace('.', '/')}/{source.name}", source.read_bytes())
    finder = jvm.org.codehaus.commons.compiler.util.resource.MapResourceFinder(sources)
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return jvm.org.codehaus.janino.JavaSourceClassLoader(parent, finder, "UTF-8")
