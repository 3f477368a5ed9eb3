"""GPUs for the stages of AI operators alone: Spark's stage-level resource profiles. Driver-side, classic Spark."""

from importlib.resources import files

from quail_spark.optimizer.errors import ConfigError

from .conf import PREFIX, QuailConf
from .scala import Catalyst, JavaObject

PER_TASK, PER_EXECUTOR = "resources.gpuPerTask", "resources.gpuPerExecutor"
EXECUTOR_GPU = "spark.executor.resource.gpu."
VENDOR = "nvidia.com"  # as Kubernetes names it

# (application id, GPUs per task, per executor) → profile: operators of one stage must have the same one
_profiles: dict[tuple[str, float, int], JavaObject] = {}


def gpu_profile(catalyst: Catalyst, conf: QuailConf) -> JavaObject | None:
    """The ResourceProfile of the settings `spark.quail.resources.*`; None where they ask for nothing.

    Raises ConfigError where the cluster manager has no such profiles, or no executor has GPUs.
    """
    per_task, per_executor = conf[PER_TASK], conf[PER_EXECUTOR]
    if not per_task:
        if per_executor:
            raise ConfigError(
                f"{PREFIX}{PER_EXECUTOR} is {per_executor} and {PREFIX}{PER_TASK} is 0; accepted: both, or 0 for both"
            )
        return None
    context = catalyst.spark.sparkContext
    key = context.applicationId, per_task, per_executor
    if key not in _profiles:
        _profiles[key] = _registered(catalyst, context, per_task, per_executor)
    return _profiles[key]


def _registered(catalyst: Catalyst, context, per_task: float, per_executor: int) -> JavaObject:
    """Without executor resources Spark takes the profile for tasks only, whose executors are as configured."""
    from py4j.protocol import Py4JJavaError

    resource = catalyst.jvm.org.apache.spark.resource
    builder = resource.ResourceProfileBuilder().require(resource.TaskResourceRequests().resource("gpu", per_task))
    if per_executor:
        configured = context.getConf()
        script = configured.get(
            f"{EXECUTOR_GPU}discoveryScript", str(files("quail_spark") / "data" / "discover_gpus.sh")
        )
        vendor = configured.get(f"{EXECUTOR_GPU}vendor", VENDOR)
        builder.require(resource.ExecutorResourceRequests().resource("gpu", per_executor, script, vendor))
    try:
        profile = builder.build()
        context._jsc.sc().resourceProfileManager().addResourceProfile(profile)
        return profile
    except Py4JJavaError as error:
        raise ConfigError(
            f"{PREFIX}{PER_TASK} is {per_task:g} and {PREFIX}{PER_EXECUTOR} is {per_executor} on the master "
            f"{context.master}; accepted: 0 for both there, or a standalone, YARN or Kubernetes cluster with "
            f"{EXECUTOR_GPU}amount (or, under dynamic allocation, {PREFIX}{PER_EXECUTOR}). "
            f"Spark says: {error.java_exception.getMessage()}"
        ) from None
