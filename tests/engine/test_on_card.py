"""On a GPU: whole models against transformers' own forward, number types and shapes as in practice."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from emulated import reference_model

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model
from quail_spark.engine.random_checkpoint import SHAPES, write_random_checkpoint
from quail_spark.engine.runner import Runner, Segment
from quail_spark.kernels.emulated import round_scores
from quail_spark.kernels.mlp import BoundedMlp
from quail_spark.kernels.scaled_linear import scaled_kinds
from quail_spark.optimizer.errors import ConfigError

IDS = (20611, 8214, 2514, 3007, 30351, 7833, 4049, 3557)
# Largest difference of a logit, in units of the logits' spread, to transformers in float32 on the same weights; with
# FP8, transformers' layers quantise weights and activations in the same way.
TOLERANCE = {None: 0.03, "row": 0.08, "block": 0.08}
SCORED = 0.15  # with queries and keys in FP8 besides
CASES = [
    ("qwen3-4b", 4, False, "off", "auto"),
    ("qwen3-4b", 4, True, "row", "auto"),
    ("qwen3-4b", 4, True, "row", "fp8-keys"),
    ("qwen3-4b", 4, True, "block", "auto"),
    ("qwen3-4b", 4, True, "off", "auto"),
    ("qwen2.5-0.5b", 2, False, "off", "auto"),
    ("qwen2.5-7b", 2, True, "row", "auto"),
    ("llama-3.2-1b", 2, False, "off", "auto"),
    ("llama-3.2-1b", 2, True, "block", "auto"),
]


def runner(directory: Path, fp8: str, device: str = "cuda:0", **settings) -> Runner:
    config = EngineConfig(str(directory), device=device, fp8=fp8, kv_bytes=2 << 30, token_budget=8192, **settings)
    return Runner(load_model(directory, device=device, fp8=fp8), config, IDS)


def prompts(rng, vocab: int) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Documents, and for each the questions behind it."""
    documents = [rng.integers(0, vocab, n).astype(np.int32) for n in (3, 63, 64, 300, 700, 1500)]
    return documents, [[rng.integers(0, vocab, n).astype(np.int32) for n in (1, 9, 30)] for _ in documents]


def packed(run: Runner, documents, questions) -> np.ndarray:
    segments = [Segment(np.concatenate([d, q])) for d, asked in zip(documents, questions, strict=True) for q in asked]
    return run.run(segments)[0]


def alone(run: Runner, documents, questions) -> np.ndarray:
    pairs = [np.concatenate([d, q]) for d, asked in zip(documents, questions, strict=True) for q in asked]
    return np.concatenate([run.run([Segment(tokens)])[0] for tokens in pairs])


def behind_kept(run: Runner, documents, questions) -> np.ndarray:
    _, nodes = run.run([Segment(d, keep=len(d), answer=False) for d in documents])
    logits, _ = run.run([Segment(q, node) for node, asked in zip(nodes, questions, strict=True) for q in asked])
    for node in nodes:
        node.release()
    return logits


def margins(logits: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(logits[:, :4], 1) - np.logaddexp.reduce(logits[:, 4:], 1)


@pytest.mark.parametrize(("shape", "layers", "fp8_checkpoint", "fp8", "kv"), CASES)
def test_against_transformers(shape, layers, fp8_checkpoint, fp8, kv, tmp_path):
    config = SHAPES[shape] | {"num_hidden_layers": layers}
    write_random_checkpoint(config, tmp_path, fp8=fp8_checkpoint, seed=7, device="cuda:0")
    rng = np.random.default_rng()
    documents, questions = prompts(rng, config["vocab_size"])
    run = runner(tmp_path, fp8, kv=kv)
    bounded = isinstance(run.model.layers[0].mlp, BoundedMlp)
    model = reference_model(tmp_path, "bounded" if bounded else run.model.fp8, "cuda:0")
    if kv == "fp8-keys":
        round_scores(model)
    flat = [np.concatenate([d, q]) for d, asked in zip(documents, questions, strict=True) for q in asked]
    with torch.inference_mode():
        want = np.stack(
            [
                model(torch.from_numpy(t.astype(np.int64))[None].cuda(), logits_to_keep=1)
                .logits[0, -1, list(IDS)]
                .cpu()
                for t in flat
            ]
        )
    spread, tolerance = want.std(), SCORED if kv == "fp8-keys" else TOLERANCE[run.model.fp8]
    for way in (packed, alone, behind_kept):
        got = way(run, documents, questions)
        worst = np.abs(got - want).max() / spread
        print(
            f"{shape} {run.model.fp8} {kv} {way.__name__}: largest logit difference {worst:.4f} of the spread {spread:.2f}"
        )
        assert worst < tolerance
        clear = np.abs(margins(want)) > 2 * tolerance * spread
        assert clear.sum() > len(clear) // 3
        assert ((margins(got) > 0) == (margins(want) > 0))[clear].all()
    assert run.page_pool.free_pages == run.page_pool.total_pages


@pytest.mark.skipif(not scaled_kinds("cuda:0"), reason="FP8 needs compute capability 8.9")
@pytest.mark.parametrize(
    ("shape", "fp8"), [("qwen3-4b", "row"), ("qwen3-4b", "off"), ("qwen2.5-7b", "row"), ("llama-3.2-1b", "off")]
)
def test_kv_pages_in_fp8(shape, fp8, tmp_path):
    """Behind pages in FP8 beside the same prompts without: what is kept is rounded, and takes little more than a byte an element."""
    config = SHAPES[shape] | {"num_hidden_layers": 4}
    write_random_checkpoint(config, tmp_path, fp8=fp8 != "off", seed=8, device="cuda:0")
    plain, run = runner(tmp_path, fp8), runner(tmp_path, fp8, kv="fp8")
    documents, questions = prompts(np.random.default_rng(), config["vocab_size"])
    many = [[*asked, *asked] for asked in questions]  # more new tokens: prefixes are copied together
    for asked in (questions, many):
        want = packed(plain, documents, asked)
        worst = np.abs(behind_kept(run, documents, asked) - want).max() / want.std()
        print(f"{shape} {fp8}: largest logit difference behind KV in FP8 {worst:.4f} of the spread {want.std():.2f}")
        assert worst < TOLERANCE["row"]
    elements = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * plain.model.config.head_dim
    assert run.token_bytes < 1.08 * elements
    assert plain.token_bytes == 2 * elements


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_number_types(dtype, tmp_path):
    """Also behind long prefixes and of long documents, which warming up takes, and with head norms that are large for float16."""
    config = SHAPES["qwen3-4b"] | {"num_hidden_layers": 4}
    write_random_checkpoint(config, tmp_path, seed=9, device="cuda:0")
    settings = EngineConfig(str(tmp_path), device="cuda:0", dtype=dtype, kv_bytes=2 << 30, token_budget=8192)
    run = Runner(load_model(tmp_path, device="cuda:0", dtype=dtype), settings, IDS)
    run.model.warm_up(run)
    model = reference_model(tmp_path, None, "cuda:0")
    documents, questions = prompts(np.random.default_rng(), config["vocab_size"])
    flat = [np.concatenate([d, q]) for d, asked in zip(documents, questions, strict=True) for q in asked]
    with torch.inference_mode():
        rows = [model(torch.from_numpy(t.astype(np.int64))[None].cuda(), logits_to_keep=1).logits for t in flat]
    want = torch.cat(rows)[:, -1, list(IDS)].cpu().numpy()
    for way in (packed, behind_kept):
        worst = np.abs(way(run, documents, questions) - want).max() / want.std()
        print(f"{dtype} {way.__name__}: largest logit difference {worst:.5f} of the spread {want.std():.2f}")
        assert worst < 0.01


def test_settings_that_the_card_refuses(tmp_path):
    write_random_checkpoint(SHAPES["qwen3-0.6b"] | {"num_hidden_layers": 1}, tmp_path, device="cuda:0")
    with pytest.raises(ConfigError, match=r"asks for 4000\.0 GiB"):
        config = EngineConfig(str(tmp_path), device="cuda:0", kv_bytes=4000 << 30)
        Runner(load_model(tmp_path, device="cuda:0"), config, IDS)
    with pytest.raises(ConfigError, match=f"this machine has {torch.cuda.device_count()} CUDA devices"):
        load_model(tmp_path, device="cuda:99")
    with pytest.raises(ConfigError, match=r"engine\.fp8 is 'row'; accepted on cuda:0 with float16: auto, off"):
        load_model(tmp_path, device="cuda:0", dtype="float16", fp8="row")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_two_devices_share_nothing(tmp_path):
    """Two runners at the same time, on threads whose current device is another: the same answers, and memory apart."""
    from concurrent.futures import ThreadPoolExecutor

    write_random_checkpoint(SHAPES["qwen3-4b"] | {"num_hidden_layers": 4}, tmp_path, fp8=True, device="cuda:0")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(0)
    second = runner(tmp_path, "row", "cuda:1")
    assert torch.cuda.memory_allocated(0) == before
    first = runner(tmp_path, "row", "cuda:0")
    work = [prompts(np.random.default_rng(seed), 151936) for seed in range(6)]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda run: [behind_kept(run, *given) for given in work], (first, second))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


ON_THE_SECOND = """
import sys, threading
import numpy as np, torch
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model
from quail_spark.engine.runner import Runner, Segment

config = EngineConfig(sys.argv[1], device="cuda:1", fp8="row", kv_bytes=2 << 30, token_budget=8192)
run = Runner(load_model(sys.argv[1], device="cuda:1", fp8="row"), config, (1, 2))
run.model.warm_up(run)
launched = []
for work in (lambda: launched.append(run.launch([Segment(np.arange(40, dtype=np.int32))])), lambda: launched[0].read()):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(*(torch._C._cuda_hasPrimaryContext(index) for index in range(2)))
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_an_engine_leaves_other_devices_alone(tmp_path):
    """No CUDA context on them: each is half a GiB, and the engine there has planned with all of its memory."""
    write_random_checkpoint(SHAPES["qwen3-4b"] | {"num_hidden_layers": 2}, tmp_path, fp8=True, device="cuda:0")
    done = subprocess.run([sys.executable, "-P", "-c", ON_THE_SECOND, tmp_path], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_the_engine_process_on_a_gpu_answers_as_on_the_cpu(tiny_checkpoint):
    """Text in, answers out, through the process, its socket and several streams at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    from evaluators import predicate

    from quail_spark.engine.client import connect
    from quail_spark.optimizer.plan import OperatorSpec

    spec = OperatorSpec("f", "filter", (predicate("{0} asks for a refund", 0), predicate("the reviewer liked {0}", 0)))
    rng = np.random.default_rng()
    words = ["refund", "film", "liked", "the", "document", "one", "two", "three", "naïve"]
    streams = [
        [[[" ".join(rng.choice(words, int(n))) for n in rng.integers(1, 60, 1)] for _ in range(40)] for _ in range(3)]
        for _ in range(4)
    ]
    found = {}
    for device in ("cpu", "cuda:0"):
        client = connect(EngineConfig(str(tiny_checkpoint), device=device, dtype="bfloat16"), f"card-{rng.random()}")
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda batches, client=client: list(client.rows(spec, batches)), streams))
        found[device] = answers
        client.stop()
    for cpu, gpu in zip(*found.values(), strict=True):
        for a, b in zip(cpu, gpu, strict=True):
            both = np.isfinite(a.margins) & np.isfinite(b.margins)
            assert both.sum() > 20
            assert np.abs(a.margins - b.margins)[both].max() < 0.25
            clear = both & (np.abs(a.margins) > 0.25)
            assert (a.codes == b.codes)[clear].all()
