#!/usr/bin/env python3
"""check_text.py TOOL DIR [ids|clean|models]: compares token ids, clean-up and text encoders with their originals.

TOOL is build/tests/tools/text_tool.  ids: models that sentencepiece trains here, against T5Tokenizer of transformers and
the tokenizers library.  clean: the clean-up of Wan with the real ftfy.  models: tiny random T5EncoderModel and
UMT5EncoderModel, from folders of transformers and with the names of Wan's release.
Prints a line for each comparison; status 1 if one fails."""
import html
import json
import os
import random
import re
import shutil
import subprocess
import sys

TOOL, DIR = sys.argv[1:3]
PARTS = sys.argv[3:] or ["ids", "clean", "models"]
SEED = 5
failed = 0

SCRIPTS = """日本語のテキスト処理は難しい。東京都に住んでいます。 東京で会いましょう。
привет мир, как дела? кошка сидит на столе. собака бежит по улице
नमस्ते दुनिया यह एक परीक्षण है। مرحبا بالعالم هذه قطة جميلة على الطاولة שלום עולם זה חתול
été naïve schön señor Ångström übergrößen ﬁne ＡＢＣ ｶﾞ ½ ² ™ …
สวัสดีชาวโลก 한국어 텍스트 처리 안녕하세요 Việt Nam tiếng Việt 你好，世界！一只猫坐在桌子上。
emoji 😀 👩‍👩‍👧 ❤️ 🇩🇪 👍🏽
the quick brown fox jumps over the lazy dog, and a camera moves slowly along the shore at sunset""".split("\n")
TEXTS = ["", "a", " ", "  ", " leading", "trailing ", "two  spaces", "tab\there\nnew\r\nline", "\u00a0nbsp\u2003em\u3000",
         "日本語のテキスト", "東京都に 住んで", "привет мир", "नमस्ते दुनिया", "مرحبا بالعالم", "שלום",
         "emoji 😀😀 👩‍👩‍👧 ❤️ 🇩🇪 👍🏽", "e\u0301a\u0308 n\u0303", "\u0301alone", "x\u200dy\u200bz\u200ew", "</s>", "a</s>b",
         "<pad> <unk> x", "<extra_id_0> and <extra_id_99>tail", "<extra_id_100>", "<extra_id_5", "a <extra_id_7>  b",
         "▁under▁score ▁ x", "<0x41>", "\x01\x02\x7f", "´ a´b ¨", "ﷺ ﬁ ﬃ ½ ² ™ ① Ａ", "ｶﾞｷﾞ", "한국어 텍스트", "\u1100\u1161\u11a8",
         "A\u030a\u0323", "😀" * 300, "word " * 3000, "x" * 5000, "日本" * 3000, "<sep> [X]x<sep>", "\r\n", "\u2028", "\x85",
         "\ufeff", "\ufffd", "𝒳 𝟘 ℌ", "ＡＢＣ　ＤＥＦ", "\U0010ffff", "ಠ_ಠ", "a\u0300\u0301\u0302\u0303"]


def report(what, bad, of):
    global failed
    failed += bad > 0
    print(f"{'FAILED' if bad else 'ok'}: {what}: {bad} of {of} differ")


def tool(args, texts):
    lines = "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
    r = subprocess.run([TOOL, *args], input=lines.encode(), capture_output=True)
    if r.returncode:
        sys.exit(f"text_tool {' '.join(args)}: {r.stderr.decode()[-1000:]}")
    return [json.loads(line) for line in r.stdout.decode().split("\n") if line]


def differ(ours, theirs, texts):
    bad = [i for i in range(len(texts)) if ours[i] != theirs[i]]
    for i in bad[:3]:
        print("  ", ascii(texts[i][:80]), "here", ascii(ours[i])[:200], "there", ascii(theirs[i])[:200])
    return len(bad)


# ---- token ids

def random_texts(n):
    rnd = random.Random(SEED)
    pool = [c for line in SCRIPTS for c in line] + list(" \t\u00a0\u3000\u200b\u200d\u0301\u0308▁<>/s")
    pool += ["</s>", "<extra_id_3>", "<unk>", " the ", " ﷺ"]
    blocks = [(1, 0x300), (0x300, 0xd800), (0xe000, 0x110000), (0x300, 0x370), (0xff00, 0xffef), (0x1f300, 0x1fa00)]
    for i in range(n):
        if i % 2:
            yield "".join(rnd.choice(pool) for _ in range(rnd.randrange(1, 60)))
        else:
            yield "".join(chr(rnd.randrange(*rnd.choice(blocks))) for _ in range(rnd.randrange(1, 30)))


def train(name, vocab_size=380, **options):
    import sentencepiece
    d = f"{DIR}/tok-{name}"
    os.makedirs(d, exist_ok=True)
    with open(DIR + "/corpus", "w") as f:
        with open(os.path.dirname(os.path.abspath(__file__)) + "/../../HACKING.md") as g:
            f.write("\n".join(SCRIPTS * 30 + g.read().split("\n")))
    sentencepiece.SentencePieceTrainer.train(input=DIR + "/corpus", model_prefix=d + "/spiece", vocab_size=vocab_size, pad_id=0,
                                             eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.98, minloglevel=2,
                                             model_type="unigram", hard_vocab_limit=False, **options)
    os.remove(d + "/spiece.vocab")
    return d


def variants(name, base):
    """tokenizer.json as several versions of transformers wrote it."""
    norm = [base["normalizer"]] if base["normalizer"] else []
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    run = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    meta = {"type": "Metaspace", "replacement": "▁"}
    for kind, change in {
        "as-saved": {},
        "4.40": {"normalizer": {"type": "Sequence", "normalizers": norm + [strip, run]},
                 "pre_tokenizer": {**meta, "prepend_scheme": "always", "split": True}},
        "4.30": {"normalizer": {"type": "Sequence", "normalizers": norm + [{**run, "content": " "}]},
                 "pre_tokenizer": {**meta, "add_prefix_space": True}},
        "first": {"normalizer": base["normalizer"],
                  "pre_tokenizer": {**meta, "prepend_scheme": "first", "split": False}},
        "white-space": {"normalizer": base["normalizer"],
                        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                            {"type": "WhitespaceSplit"}, {**meta, "add_prefix_space": True}]}},
    }.items():
        v = json.loads(json.dumps({**base, **change}))
        for a in v["added_tokens"] if kind != "as-saved" else []:
            a["lstrip"] = a["content"] in ("<extra_id_7>", "<extra_id_3>")
            a["rstrip"] = a["content"] == "<extra_id_3>"
        if name == "bytes":
            v["model"]["byte_fallback"] = True
        yield kind, v


def check_ids():
    import tokenizers
    from transformers import T5Tokenizer
    texts = TEXTS + list(random_texts(800))
    for name, options in {"nmt_nfkc": {"normalization_rule_name": "nmt_nfkc"},
                          "identity": {"normalization_rule_name": "identity"},
                          "bytes": {"normalization_rule_name": "nmt_nfkc", "byte_fallback": True, "vocab_size": 620},
                          "user": {"user_defined_symbols": ["<sep>", "[X]"]}}.items():
        d = train(name, **options)
        tok = T5Tokenizer.from_pretrained(d)
        for most in 100000, 12, 1:
            ours = [r["ids"] for r in tool(["ids", d, str(most)], texts)]
            theirs = [tok(t, max_length=most, truncation=True).input_ids for t in texts]
            report(f"ids, {name}, spiece.model, at most {most}", differ(ours, theirs, texts), len(texts))
        tok.save_pretrained(d + "/saved")
        with open(d + "/saved/tokenizer.json") as f:
            base = json.load(f)
        for kind, v in variants(name, base):
            path = f"{d}/{kind}.json"
            with open(path, "w") as f:
                json.dump(v, f, ensure_ascii=False)
            rust = tokenizers.Tokenizer.from_file(path)
            rust.no_truncation()
            theirs = [rust.encode(t).ids for t in texts]
            ours = [r["ids"] for r in tool(["ids", path, "100000"], texts)]
            report(f"ids, {name}, tokenizer.json {kind}", differ(ours, theirs, texts), len(texts))


# ---- clean-up

DIRTY = ["  a\t b\n\nc ", "âœ” No problems", "&macr;\\_(ã\x83\x84)_/&macr;", "Broken text&hellip; it&#x2019;s ﬂubberiﬁc!",
         "ＬＯＵＤ　ＮＯＩＳＥＳ", "P&EACUTE;REZ &amp;amp; &lt;b&gt; &notit; &notin; &semi; &#59; &AMP &copy2", "<b>&eacute;</b> &amp;eacute;",
         "â€œlike thisâ€\x9d â€™", "voilÃ  le travail", "Ã©tÃ© Ã  la mode", "schÃ¶n", "l’humanitÃ©",
         "The Mona Lisa doesnÃƒÂ¢Ã¢â€šÂ¬Ã¢â€žÂ¢t have eyebrows.", "\x1b[31mred\x1b[0m", "a\r\nb\rc\u2028d\x85e", "\ufeffbom",
         "e\u0301 A\u030a", "ｶﾞ ﾊﾟ ﾎﾞ", "„Gänsefüßchen“ ‚x‘", "ŉ ǆ ﬅ", "×²", "Ã", "Â©2020 Â£5", "naïve café – 5°C",
         "日本語 テスト", "æ—¥æœ¬èªž", "emoji 👩‍👩‍👧 ðŸ˜€ ðŸ‘\x8d", "&#128;&#x80;&#xD800;&#1;&#x110000;&#0;", "&#13;&#10;",
         "à¤¨à¤®à¤¸à¥\x8dà¤¤à¥‡", "ÙØ§Ø¨", "\u200b\u200d\u200e", "&NewLine;&Tab;x&nbsp;y",
         "&fjlig;&FJLIG;&SZLIG;&NVGT;&ntilde;&NTILDE;&nTILDE;", "œuvre Œ b", "ï¿½", "\ufffd", "â€\ufffd x", "Ã\xa0 la", "fÃ cil",
         "Â¡hola!", "ÐŸÑ€Ð¸Ð²ÐµÑ‚", "a\u0300\u0323\u0301" * 50, "\u0315\u0300" * 300]


def clean(text):
    import ftfy
    text = html.unescape(html.unescape(ftfy.fix_text(text, fix_encoding=False))).strip()
    return re.sub(r"\s+", " ", text).strip()


def dirty_texts(n):
    rnd = random.Random(SEED)
    words = """été naïve schön señor l’été “quoted” – — … 日本語 привет नमस्ते مرحبا 😀 👩‍👩‍👧 café Ångström 5°C ©2020 £5 €10 x² ½ œuvre
        ŒUVRE ÿ Þorn ßtraße à la mode Ü Ø Ð × ÷ ¿qué? ¡hola! «guillemets» ‹x› ™ ® ª º µ ¶ § ¦ ¬ ¯ ¸ ¨ ´ · ƒ † ‡ ‰ ˆ ˜ Š š ž Ÿ""".split()
    entities = ["&amp;", "&lt;", "&eacute;", "&EACUTE;", "&copy", "&notit;", "&#233;", "&#xe9;", "&#150;", "&hellip;",
                "&nbsp;", "&#8217;", "&x;", "&;", "&#;", "&#x;", "&ampamp;", "&AMP;"]
    odd = list("\t\n\r\x0b\x0c\x7f\u200b\u200d\u2028\u3000\ufeff\ufffd\x1a\u0301<'`") + ["\r\n", "\x1b[0m", "\x1b[1;31m",
                                                                                      "ﬁ", "ＡＢＣ", "ｶﾞ", "e\u0301", "ǆ"]

    def piece():
        k, w = rnd.random(), rnd.choice(words)
        if k < .2:
            return w
        if k < .5:
            try:
                return w.encode().decode(rnd.choice(["cp1252", "latin-1"]))
            except UnicodeDecodeError:
                return w.encode().decode("latin-1")
        return rnd.choice(entities if k < .6 else odd if k < .7 else ["the", "a", "Cat", "dog.", "running,", "x"])

    return [rnd.choice([" ", ""]).join(piece() for _ in range(rnd.randrange(1, 9))) for _ in range(n)]


def check_clean():
    names = ["&" + n for n in html.entities.html5] + ["&" + n.upper() for n in html.entities.html5]
    for what, texts in (("list", DIRTY), ("entities", names), ("mixtures", dirty_texts(5000))):
        ours = [r.get("text") for r in tool(["clean"], texts)]
        theirs = [clean(t) for t in texts]
        report(f"clean-up, {what}", differ(ours, theirs, texts), len(texts))


# ---- models

def wan_names(state, layers, own):
    out = {"token_embedding.weight": state["shared.weight"], "norm.weight": state["encoder.final_layer_norm.weight"]}
    for i in range(layers):
        a, b = f"encoder.block.{i}.layer.", f"blocks.{i}."
        for theirs, wan in (("0.layer_norm", "norm1"), ("1.layer_norm", "norm2"), ("0.SelfAttention.q", "attn.q"),
                            ("0.SelfAttention.k", "attn.k"), ("0.SelfAttention.v", "attn.v"),
                            ("0.SelfAttention.o", "attn.o"), ("1.DenseReluDense.wi_0", "ffn.gate.0"),
                            ("1.DenseReluDense.wi_1", "ffn.fc1"), ("1.DenseReluDense.wo", "ffn.fc2")):
            out[f"{b}{wan}.weight"] = state[f"{a}{theirs}.weight"]
        if own or i == 0:
            bias = state[a + "0.SelfAttention.relative_attention_bias.weight"]
            out[(b if own else "") + "pos_embedding.embedding.weight"] = bias
    return out


def encode(path, *args):
    import numpy
    info = tool(["encode", path, args[0], DIR + "/rows", *args[1:]], MODEL_TEXTS)
    rows, out, at = numpy.fromfile(DIR + "/rows", dtype=numpy.float32).reshape(-1, info[0]["dim"]), [], 0
    for i in info:
        out.append(rows[at:at + i["rows"]])
        at += i["rows"]
    return out


def relative(ours, theirs):
    assert [a.shape for a in ours] == [b.shape for b in theirs]
    return (sum(((a - b) ** 2).sum() for a, b in zip(ours, theirs)) / sum((b ** 2).sum() for b in theirs)) ** .5


MODEL_TEXTS = ["", "a", "the cat sat", "日本語のテキスト 東京都", "word " * 700, "привет мир 😀", "x y z " * 30] + [
    f"the quick brown fox number {i} jumps" for i in range(8)]


def expect(what, value, most):
    global failed
    failed += not value <= most
    print(f"{'ok' if value <= most else 'FAILED'}: {what}: {value:.3g}, at most {most:.3g}")


def check_model(name, cls, config, spm):
    import torch
    from transformers import T5Tokenizer
    torch.manual_seed(SEED)
    m = cls(config).eval()
    for n, p in m.named_parameters():
        if p.ndim == 1:
            torch.nn.init.normal_(p, mean=1.0, std=.2)
        else:
            torch.nn.init.normal_(p, std=1.0 if "relative" in n or "shared" in n else p.shape[1] ** -.5)
    d = f"{DIR}/{name}"
    m.save_pretrained(d)
    shutil.copy(spm, d)
    tok = T5Tokenizer.from_pretrained(d)
    e = tok(MODEL_TEXTS, padding="max_length", max_length=512, truncation=True, return_tensors="pt")

    def theirs(model):
        with torch.no_grad():
            h = model(e.input_ids, e.attention_mask).last_hidden_state.float()
        return [r[:n].numpy() for r, n in zip(h, e.attention_mask.sum(1))]

    ref, low = theirs(m), theirs(cls.from_pretrained(d, dtype=torch.bfloat16).eval())
    worst = relative(low, ref)
    for how in (), ("stream",):
        ours = encode(d, "f32", *how)
        expect(f"{name} f32 {' '.join(how)}, largest difference", max(abs(a - b).max() for a, b in zip(ours, ref)), 1e-4)
        expect(f"{name} bf16 {' '.join(how)}, error against f32, beside that of transformers",
               relative(encode(d, "bf16", *how), ref), 1.1 * worst)
    os.makedirs(d + "-wan/google/umt5-xxl", exist_ok=True)
    shutil.copy(spm, d + "-wan/google/umt5-xxl")
    if config.relative_attention_num_buckets == 32: # Wan's files do not say how far distances are told apart: 128
        torch.save(wan_names(m.state_dict(), config.num_layers, "umt5" in name), d + "-wan/models_t5.pth")
        ours = encode(d + "-wan/models_t5.pth", "f32")
        expect(f"{name} as Wan's .pth, largest difference", max(abs(a - b).max() for a, b in zip(ours, ref)), 1e-4)


def check_models():
    from transformers import T5Config, T5EncoderModel, UMT5Config, UMT5EncoderModel
    spm = train("models", normalization_rule_name="nmt_nfkc") + "/spiece.model"
    common = {"vocab_size": 512, "feed_forward_proj": "gated-gelu"}
    check_model("t5", T5EncoderModel, T5Config(d_model=96, d_kv=24, d_ff=200, num_layers=3, num_heads=5, **common), spm)
    check_model("umt5-odd", UMT5EncoderModel, UMT5Config(d_model=128, d_kv=64, d_ff=320, num_layers=3, num_heads=2,
                relative_attention_num_buckets=16, relative_attention_max_distance=40, **common), spm)
    check_model("umt5-one", UMT5EncoderModel, UMT5Config(d_model=40, d_kv=8, d_ff=72, num_layers=1, num_heads=3, **common),
                spm)


os.makedirs(DIR, exist_ok=True)
for part in PARTS:
    {"ids": check_ids, "clean": check_clean, "models": check_models}[part]()
sys.exit(failed > 0)
