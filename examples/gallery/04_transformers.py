"""
A transformers model
====================

A text classifier of Hugging Face transformers whose pipeline says of each answer whether it is
accepted. The model is tiny and made on the spot, so that nothing is downloaded; with yours only the
first block changes.
"""

# sphinx_gallery_thumbnail_path = "images/report-rows.png"

# %%
# **A small model**: one layer, forty words, three classes. Some words speak for a class, most say nothing, and the
# model learns in a second which are which.

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, logging

logging.disable_progress_bar()
names = ["negative", "neutral", "positive"]
words = [
    *(f"bad{k}" for k in range(8)),
    *(f"good{k}" for k in range(8)),
    *(f"word{k}" for k in range(24)),
]
raw = Tokenizer(
    models.WordLevel({w: i for i, w in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]")
)
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")

rng = np.random.default_rng(0)
texts = [" ".join(rng.choice(words, 6)) for _ in range(4000)]
mood = np.array([text.count("good") - text.count("bad") for text in texts])
labels = (
    np.sign(mood + np.rint(rng.normal(scale=0.4, size=len(texts)))).astype(int) + 1
)  # people disagree

torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(words) + 2,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        id2label=dict(enumerate(names)),
        label2id={name: k for k, name in enumerate(names)},
    )
)
tokens, truth = tokenizer(texts, return_tensors="pt"), torch.from_numpy(labels)
optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(60):
    rows = torch.from_numpy(rng.integers(0, 2000, 128))
    loss = model(**{key: value[rows] for key, value in tokens.items()}, labels=truth[rows]).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
model.eval()
print(f"loss of the last batch: {loss.item():.2f}")

# %%
# **The gate** is fitted on logits of texts that the model was not trained on, with the classes in the model's order.

import metacal as mc

with torch.no_grad():
    logits = model(**tokens).logits.numpy()
gate = mc.MetaCal(mc.MinAccuracy(0.9), classes=names, reject_label="unsure")
gate.fit(logits[2000:3500], np.array(names)[labels[2000:3500]])
print(gate.certificate_.statement)

# %%
# **The pipeline** carries the decision: ``accept`` stands beside label and score.

from metacal.export.transformers import CalibratedTextClassificationPipeline

pipe = CalibratedTextClassificationPipeline(model=model, tokenizer=tokenizer, cal=gate)
for text in ("good1 good4 word3", "bad2 word5 bad0", "good1 bad2 word3 word4"):
    print(f"{text:24}", pipe(text))

# %%
# On the last 500 texts, which neither has seen:

answers = pipe(texts[3500:])
accept = np.array([answer["accept"] for answer in answers])
right = np.array([answer["label"] for answer in answers]) == np.array(names)[labels[3500:]]
doubtful = int(np.flatnonzero(~accept)[0])
print("unsure:", texts[3500 + doubtful], answers[doubtful])
print(
    f"{accept.mean():.1%} accepted; right: {right.mean():.3f} of all, {right[accept].mean():.3f} of"
    " the accepted"
)
