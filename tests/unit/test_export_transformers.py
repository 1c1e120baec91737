"""The text-classification pipeline: a tiny model and tokenizer made on the spot, nothing
downloaded.
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc

torch = pytest.importorskip("torch")
from metacal.export.torch import to_module  # noqa: E402

NAMES = ["negative", "neutral", "positive"]
WORDS = [f"word{i}" for i in range(40)]
#: Where transformers puts a pipeline that is not told where to go.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


@pytest.fixture(scope="module")
def transformers():
    """Imported by the process that runs these tests, and by no other."""
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def pipeline_class(transformers):
    from metacal.export.transformers import CalibratedTextClassificationPipeline

    return CalibratedTextClassificationPipeline


@pytest.fixture(scope="module")
def tokenizer(transformers):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    made = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
    )


@pytest.fixture(scope="module")
def model(transformers):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS) + 2,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        id2label=dict(enumerate(NAMES)),
        label2id={name: i for i, name in enumerate(NAMES)},
    )
    made = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        made.classifier.weight.mul_(100.0)  # a random head says next to nothing otherwise
    return made.to(DEVICE)


@pytest.fixture(scope="module")
def texts():
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, 6)) for _ in range(700)]


@pytest.fixture(scope="module")
def logits(model, tokenizer, texts):
    with torch.no_grad():
        return model(**tokenizer(texts, return_tensors="pt").to(DEVICE)).logits.cpu().numpy()


@pytest.fixture(scope="module")
def cal(logits):
    random = np.random.default_rng(1)
    labels = (2.0 * logits[:600] + random.gumbel(size=(600, 3))).argmax(axis=1)
    names = np.array(NAMES)[labels]
    return mc.MetaCal(mc.MaxMiscoverage(0.2), classes=NAMES, reject_label="unsure").fit(
        logits[:600], names
    )


@pytest.fixture
def pipe(transformers, pipeline_class, model, tokenizer, cal):
    return transformers.pipeline(
        "text-classification",
        model=model,
        tokenizer=tokenizer,
        pipeline_class=pipeline_class,
        cal=cal,
    )


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 8])
def test_results_carry_the_calibrated_score_and_the_decision(pipe, cal, texts, logits, batch_size):
    found = pipe(texts[600:], batch_size=batch_size)
    accept, proba = cal.accepts(logits[600:]), cal.predict_proba(logits[600:])
    assert 0 < accept.mean() < 1
    assert [result["accept"] for result in found] == accept.tolist()
    assert [result["label"] for result in found] == [NAMES[i] for i in logits[600:].argmax(axis=1)]
    np.testing.assert_allclose([r["score"] for r in found], proba.max(axis=1), atol=1e-5)


def test_one_text_gives_a_list_of_one_as_in_transformers(pipe, texts):
    (result,) = pipe(texts[0])
    assert set(result) == {"label", "score", "accept"}
    assert pipe({"text": texts[0]}) == result


@pytest.mark.parametrize("top_k", [1, 2, None])
def test_top_k(pipe, cal, texts, logits, top_k):
    found = pipe(texts[600:640], top_k=top_k)
    for results, row in zip(found, logits[600:640]):
        assert len(results) == (top_k or 3)
        assert results[0]["label"] == NAMES[row.argmax()]
        assert [r["score"] for r in results] == sorted((r["score"] for r in results), reverse=True)
        assert {r["accept"] for r in results} == set(cal.accepts(row[None]).tolist())


def test_an_artifact_does_as_well(pipeline_class, pipe, model, tokenizer, cal, texts, tmp_path):
    mc.save(cal, tmp_path / "cal.json")
    from_file = pipeline_class(model=model, tokenizer=tokenizer, cal=tmp_path / "cal.json")
    assert from_file(texts[:5]) == pipe(texts[:5])


def test_half_precision_models(pipeline_class, model, tokenizer, cal, texts):
    import copy

    half = copy.deepcopy(model).to(torch.bfloat16)
    pipe = pipeline_class(model=half, tokenizer=tokenizer, cal=cal)
    with (
        torch.no_grad()
    ):  # one text at a time, as the pipeline does: the shape may decide how bfloat16 rounds
        each = [
            half(**tokenizer(text, return_tensors="pt").to(half.device)).logits
            for text in texts[600:605]
        ]
    rows = torch.cat(each).cpu()
    assert [r["accept"] for r in pipe(texts[600:605])] == to_module(cal)(rows)[2].tolist()


def test_what_does_not_fit_is_refused(pipeline_class, model, tokenizer, cal, logits, pipe, texts):
    def make(fitted):
        return pipeline_class(model=model, tokenizer=tokenizer, cal=fitted)

    labels = logits.argmax(axis=1)
    with pytest.raises(mc.InputError, match=r"fitted on 2 classes.* 3"):
        make(mc.TemperatureScaling().fit(logits[:, :2], logits[:, :2].argmax(axis=1)))
    with pytest.raises(mc.InputError, match="differ from the classes"):
        make(mc.TemperatureScaling(classes=NAMES[::-1]).fit(logits, np.array(NAMES)[labels]))
    proba = mc.TemperatureScaling().fit(logits, labels).predict_proba(logits)
    with pytest.raises(mc.InputError, match="was fitted on probabilities"):
        make(mc.TemperatureScaling(input="probabilities").fit(proba, labels))
    with pytest.raises(mc.InputError, match="function_to_apply has no effect"):
        pipe(texts[0], function_to_apply="sigmoid")
