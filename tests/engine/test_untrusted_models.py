"""A model directory is data: no code of it runs, whatever it names."""

import json
import pickle
import shutil
import sys

import pytest

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.factory import make_evaluator
from quail_spark.optimizer.errors import ModelError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

SPEC = OperatorSpec("op", "filter", (Predicate("is {0} red?", (Argument(0),)),))


@pytest.fixture
def model(tmp_path, tiny_checkpoint):
    """A copy of the tiny checkpoint to tamper with."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "model")


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "trace of code that was run"


def evaluator(model):
    return make_evaluator(EngineConfig(str(model), dtype="float32", threads=1, kv_bytes=8 << 20))


def change(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def test_the_bomb_works(trace):
    pickle.loads(pickle.dumps(Bomb(trace))).close()
    assert trace.exists()


def test_code_beside_a_known_architecture_is_ignored(model, trace):
    """Named by the configuration, the generation configuration and the tokenizer."""
    for name in ("modeling_own", "tokenization_own", "configuration_own", "tokenizer", "__init__"):
        (model / f"{name}.py").write_text(f"open({str(trace)!r}, 'w')\nclass Own: pass\n")
    auto = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    change(model / "config.json", auto_map=auto)
    change(
        model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}
    )
    (model / "generation_config.json").write_text(json.dumps({"auto_map": auto, "custom_generate": "modeling_own.Own"}))
    one = evaluator(model)
    assert one.open(SPEC).rows([["a"]]).counts.evaluations == 1
    one.close()
    assert not trace.exists() and not [name for name in sys.modules if name.endswith("_own")]


@pytest.mark.parametrize("keep", ["architectures", "nothing"])
def test_an_architecture_that_needs_code_is_refused(model, trace, keep):
    (model / "configuration_own.py").write_text(f"open({str(trace)!r}, 'w')\nclass Own: pass\n")
    change(model / "config.json", model_type="own", auto_map={"AutoConfig": "configuration_own.Own"})
    if keep == "nothing":
        change(model / "config.json", architectures=["OwnForCausalLM"])
    with pytest.raises(ModelError):
        evaluator(model)
    assert not trace.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl", "consolidated.00.pth", "model.ckpt"])
def test_pickled_weights_are_refused_unread(model, trace, name):
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(ModelError, match=r"no \*\.safetensors file; accepted: weights as safetensors, or a GGUF file"):
        evaluator(model)
    with pytest.raises(ModelError, match="is a file; accepted: a directory of safetensors"):
        evaluator(model / name)
    assert not trace.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_a_pickle_under_another_name_is_refused(model, trace, name):
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(ModelError):
        evaluator(model if name.endswith("safetensors") else model / name)
    assert not trace.exists()


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__[1].__subclasses__()",
        "cycler.__init__.__globals__.os.system('touch ' ~ TRACE)",
        "lipsum.__globals__['os'].popen('touch ' ~ TRACE).read()",
        "messages.append(1)",
    ],
)
def test_a_chat_template_stays_in_its_sandbox(model, trace, expression):
    give_template(model, f"{{% set TRACE = '{trace}' %}}{{{{ {expression} }}}}")
    with pytest.raises(ModelError, match=r"chat template of .* can't be rendered"):
        evaluator(model)
    assert not trace.exists()


def test_a_chat_template_that_only_writes_text_works(model):
    give_template(model, "{% set TRACE = 'x' %}{{ TRACE ~ 'y' }}")
    one = evaluator(model)
    assert one.tokens.chat == ("xy", "")
    one.close()


def give_template(model, text):
    for path in model.glob("*.jinja"):
        path.unlink()
    change(model / "tokenizer_config.json", chat_template=text + "{{ messages[0]['content'] }}")


def test_an_index_cannot_point_out_of_the_directory(model, tmp_path):
    """Only files of the directory itself are read: an index of shards is not followed."""
    (model / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../outside.safetensors"}}))
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        evaluator(model)
