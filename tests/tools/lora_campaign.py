#!/usr/bin/env python3
"""Random files of adapters against `vfm-ckpt merge`.

    lora_campaign.py BASE FILE TRIES SEED

BASE is a Wan checkpoint and FILE its weights in the original layout.  Each try writes a file of adapters for some layers, in the names of
one program, with a random scale, and computes the merged weights by the rules of PEFT and LyCORIS: LoRA, LoHa and LoKr, with and
without magnitudes (DoRA).  Half of the tries have one fault, for which the merge must fail, name it and write nothing, or leave the
layer out with --skip-missing.  Prints "N passed, N failed".
"""
import array
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys

DIFFUSERS = {"self_attn.q": "attn1.to_q", "self_attn.k": "attn1.to_k", "self_attn.v": "attn1.to_v", "self_attn.o": "attn1.to_out.0",
             "cross_attn.q": "attn2.to_q", "cross_attn.k": "attn2.to_k", "cross_attn.v": "attn2.to_v", "cross_attn.o": "attn2.to_out.0",
             "ffn.0": "ffn.net.0.proj", "ffn.2": "ffn.net.2", "norm3": "norm2",
             "self_attn.norm_q": "attn1.norm_q", "cross_attn.norm_k": "attn2.norm_k"}
TOP = {"head.head": "proj_out", "time_projection.1": "condition_embedder.time_proj",
       "text_embedding.0": "condition_embedder.text_embedder.linear_1"}


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["shape"], array.array("f", data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])) for k, v in head.items()}


def write(path, tensors, meta):
    head, body = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = array.array("i" if dtype == "I32" else "f", values).tobytes()
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    if meta is not None:
        head["__metadata__"] = meta
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


class Try:
    def __init__(self, rng, base, folder):
        self.rng, self.base, self.folder = rng, base, folder
        self.layers = [k[:-7] for k, (s, _) in base.items() if k.endswith(".weight") and len(s) == 2]
        self.want = {k: list(v) for k, (_, v) in base.items()}
        self.style = rng.choice(["original", "diffusers", "kohya"])
        self.prefix = {"original": rng.choice(["diffusion_model.", "", "model.diffusion_model."]),
                       "diffusers": rng.choice(["transformer.", "base_model.model.", ""]), "kohya": rng.choice(["lora_unet_", "lora_unet__"])}[self.style]
        names = [("lora_A", "lora_B"), ("lora_A.default", "lora_B.default"), ("lora_down", "lora_up")]
        self.down, self.up = names[2] if self.style == "kohya" else rng.choice(names)
        self.tensors, self.meta, self.config, self.rules, self.skip = {}, None, None, {}, False

    def module(self, k):
        """The name of a layer of the original release in this style, without prefix."""
        if self.style == "original":
            return k
        if self.style == "kohya":
            return k.replace(".", "_")
        m = re.match(r"(blocks\.\d+)\.(.*)", k)
        return f"{m[1]}.{DIFFUSERS[m[2]]}" if m else TOP[k]

    def known(self, k):
        m = re.match(r"blocks\.\d+\.(.*)", k)
        return m[1] in DIFFUSERS if m else k in TOP

    def values(self, n):
        return [self.rng.uniform(-.3, .3) for _ in range(n)]

    def put(self, name, shape, values=None, dtype="F32"):
        values = self.values(math.prod(shape)) if values is None else values
        self.tensors[name] = (dtype, list(shape), values)
        return array.array("f", values)

    def scales(self, chosen):
        """Draws ranks and the rules of the scale; returns {layer: (rank, scale, alpha of a tensor)}."""
        r = self.rng
        rank, ranks, alphas, rules = r.randint(1, 5), {}, {}, {}
        kind = r.choice(["none", "tensor"] if self.style == "kohya" else ["none", "tensor", "metadata", "config"])
        alpha = r.choice([1, 2, 4, 8, 2.5, 16])
        if kind in ("metadata", "config"):
            rules = {"r": rank, "lora_alpha": alpha, "target_modules": ["x"], "lora_dropout": 0.0, "peft_type": "LORA",
                     "use_rslora": r.random() < .3, "rank_pattern": {}, "alpha_pattern": {}, "use_dora": r.random() < .2, "bias": "none"}
            pick = lambda k: r.choice([re.escape(self.module(k)), self.module(k), "^" + self.module(k), self.module(k).split(".")[-1],
                                       ".".join(self.module(k).split(".")[-2:]), r"blocks\.\d+\." + self.module(k).split(".", 2)[-1],
                                       r"blocks.[01].(attn1|self_attn|ffn)\..*"])
            for key, value in (("rank_pattern", lambda: r.randint(1, 5)), ("alpha_pattern", lambda: r.choice([1, 3, 32, .5]))):
                if r.random() < .5:
                    rules[key] = {pick(r.choice(chosen)): value() for _ in range(r.randint(1, 3))}
            if r.random() < .2:
                del rules["lora_alpha"]
        out = {}
        for k in chosen:
            match = lambda p, other: next((v for q, v in p.items() if re.match(rf"(.*\.)?({q})$", self.module(k))), other)
            n = match(rules["rank_pattern"], rank) if rules else rank if r.random() < .8 else r.randint(1, 5)
            a = match(rules["alpha_pattern"], rules.get("lora_alpha", 8)) if rules else n
            own = None
            if kind == "tensor":
                a = own = alpha if r.random() < .8 else r.choice([3, 5, .25])
            out[k] = n, a / (math.sqrt(n) if rules.get("use_rslora") else n), own
        if kind == "metadata":
            keys = {self.prefix + key: v for key, v in rules.items()}
            if self.prefix and r.random() < .3:
                keys.update({"text_encoder.r": 64, "text_encoder.lora_alpha": 7, "text_encoder.use_rslora": True})
            self.meta = {"format": "pt", "lora_adapter_metadata": json.dumps(keys)}
        elif kind == "config":
            self.config = rules
        self.rules = rules
        return out

    def change(self, name, values, scale):
        self.want[name] = [w + scale * v for w, v in zip(self.want[name], values)]

    def matrix(self, name, up, down, rows, cols, rank):
        """A product of two matrices, `name`_up and `name`_down; returns its rows."""
        a, b = self.put(name + down, (rank, cols)), self.put(name + up, (rows, rank))
        return [[sum(b[i * rank + t] * a[t * cols + j] for t in range(rank)) for j in range(cols)] for i in range(rows)]

    def product(self, k, p, rank, scale):
        """Draws the product of a layer; returns its rows and its scale."""
        (rows, cols), r = self.base[k + ".weight"][0], self.rng
        kind = "lora" if self.rules else r.choice(["lora", "lora", "loha", "lokr"])
        if kind == "lora":
            return self.matrix(p, f".{self.up}.weight", f".{self.down}.weight", rows, cols, rank), scale
        if kind == "loha":
            x, y = (self.matrix(f"{p}.hada_w{i}", "_a", "_b", rows, cols, rank) for i in (1, 2))
            return [[u * v for u, v in zip(*row)] for row in zip(x, y)], scale
        f, whole = [], [r.random() < .5, r.random() < .5]
        r1, c1 = (r.choice([d for d in range(1, n + 1) if n % d == 0]) for n in (rows, cols))
        for i, (m, n) in enumerate([(r1, c1), (rows // r1, cols // c1)]):
            name = f"{p}.lokr_w{i + 1}"
            if whole[i]:
                v = self.put(name, (m, n))
                f.append([v[j * n:(j + 1) * n] for j in range(m)])
            else:
                f.append(self.matrix(name, "_a", "_b", m, n, rank))
        m, n = rows // r1, cols // c1
        return [[f[0][i // m][j // n] * f[1][i % m][j % n] for j in range(cols)] for i in range(rows)], 1 if all(whole) else scale

    def decompose(self, k, p, rows, scale):
        """Draws a magnitude (DoRA); returns the difference that it makes of the product."""
        w, n, m = self.base[k + ".weight"][1], len(rows[0]), len(rows)
        new = [[w[i * n + j] + scale * x for j, x in enumerate(row)] for i, row in enumerate(rows)]
        form = self.rng.choice(["lora_magnitude_vector", "dora_scale", "dora_scale in"])
        if form.endswith("in"):
            g = self.put(p + ".dora_scale", (1, n), [self.rng.uniform(.5, 2) for _ in range(n)])
            norm = [math.sqrt(sum(row[j] ** 2 for row in new)) for j in range(n)]
            return [new[i][j] * g[j] / norm[j] - w[i * n + j] for i in range(m) for j in range(n)]
        g = self.put(f"{p}.{form}", (m,) if form[0] == "l" else (m, 1), [self.rng.uniform(.5, 2) for _ in range(m)])
        norm = [math.sqrt(sum(x ** 2 for x in row)) for row in new]
        return [new[i][j] * g[i] / norm[i] - w[i * n + j] for i in range(m) for j in range(n)]

    def adapter(self, k, rank, scale, alpha):
        p = self.prefix + self.module(k)
        rows, scale = self.product(k, p, rank, scale)
        if self.rules.get("use_dora") or (not self.rules and self.rng.random() < .2):
            self.change(k + ".weight", self.decompose(k, p, rows, scale), 1)
            scale = None
        else:
            self.change(k + ".weight", [x for row in rows for x in row], scale)
        if alpha is not None:
            self.put(p + ".alpha", self.rng.choice([(), (1,)]), [alpha])
        lora = f"{p}.{self.down}.weight" in self.tensors
        if k + ".bias" in self.base and lora and scale is not None and self.rng.random() < .15:
            self.change(k + ".bias", self.put(f"{p}.{self.up}.bias", self.base[k + ".bias"][0]), scale)
        elif k + ".bias" in self.base and self.rng.random() < .15:
            self.change(k + ".bias", self.put(p + ".diff_b", self.base[k + ".bias"][0]), 1)

    def build(self):
        usable = [k for k in self.layers if self.known(k)]
        chosen = self.rng.sample(usable, self.rng.randint(1, len(usable)))
        norms = [k[:-7] for k, (s, _) in self.base.items() if k.endswith(".weight") and len(s) == 1 and self.known(k[:-7])]
        for k, (rank, scale, alpha) in self.scales(chosen).items():
            self.adapter(k, rank, scale, alpha)
        for k in usable + norms:
            if k not in chosen and self.rng.random() < .05:
                self.change(k + ".weight", self.put(self.prefix + self.module(k) + ".diff", self.base[k + ".weight"][0]), 1)
        self.chosen = chosen
        if self.style != "diffusers" and self.rng.random() < .3:
            k = self.rng.choice(["blocks.0", "blocks.1", "head"])
            shape = self.base[k + ".modulation"][0]
            self.change(k + ".modulation", self.put(self.prefix + self.module(k) + ".diff_m", shape), 1)

    def of(self, form):
        return [t for t in self.tensors if t.endswith(form)]

    def spoil(self):
        """Adds one fault; returns a text that the message must hold, or None if the fault does not suit the file."""
        r = self.rng
        lora = [k for k in self.chosen if f"{self.prefix}{self.module(k)}.{self.down}.weight" in self.tensors]
        if not lora:
            return None
        k = r.choice(lora)
        p = self.prefix + self.module(k)
        tail = self.module(k).rsplit(".", 1)[-1] if self.style != "kohya" else self.module(k)
        down, up = f"{p}.{self.down}.weight", f"{p}.{self.up}.weight"
        rules = self.config or (json.loads(self.meta["lora_adapter_metadata"]) if self.meta else None)
        at = "" if self.config else self.prefix
        fault = r.choice(["no down", "no up", "lone alpha", "alpha", "twice", "layer", "form", "shape", "rank", "integers", "prefix",
                          "rule", "no tensors", "two rules", "alpha twice"])
        if fault == "no down":
            del self.tensors[down]
        elif fault == "no up":
            del self.tensors[up]
        elif fault == "lone alpha":
            self.tensors = {n: v for n, v in self.tensors.items() if not n.startswith(p + ".") or n.endswith(".diff_b")}
            self.put(p + ".alpha", (), [4.])
        elif fault == "alpha":
            self.put(p + ".alpha", *r.choice([((), [0.]), ((), [-8.]), ((), [math.nan]), ((), [math.inf]), ((2,), [8., 8.]), ((0,), [])]))
        elif fault == "twice":
            other = {"lora_down": "lora_A", "lora_A": "lora_down", "lora_A.default": "lora_A"}[self.down]
            self.tensors[f"{p}.{other}.weight"] = self.tensors[down]
        elif fault == "layer":
            tail = "no_such_layer"
            self.put(f"{self.prefix}{tail}.{self.down}.weight", (2, 32))
            self.put(f"{self.prefix}{tail}.{self.up}.weight", (32, 2))
            self.skip = r.random() < .5
        elif fault == "form":
            tail = r.choice(["dora_scale", "hada_w1_a", "lora_mid.weight", "lokr_w1", "lokr_t2", "hada_t1", "set_weight",
                             "lora_magnitude_vector"])
            self.put(f"{p}.{tail}", (2, 2))
        elif fault == "shape":
            _, s, v = self.tensors[down]
            self.put(down, (s[0], s[1] + 1))
        elif fault == "rank":
            _, s, v = self.tensors[up]
            self.put(up, (s[0], s[1] + 1))
        elif fault == "integers":
            _, s, v = self.tensors[up]
            self.put(up, s, [1] * len(v), "I32")
        elif fault == "prefix":
            if len(self.chosen) < 5 or self.style == "kohya":
                return None
            for t in (down, up):
                self.tensors["text_encoder." + t] = self.tensors.pop(t)
        elif fault == "rule":
            if rules is None:
                return None
            key, v = r.choice([("use_dora", not rules[at + "use_dora"]), ("peft_type", "LOHA"), ("peft_type", "OFT"), ("init_lora_weights", "pissa"), ("lora_alpha", -1), ("lora_alpha", "8"),
                               ("r", 0), ("r", 77), ("some_new_rule", 3), ("alpha_pattern", {"(?i)to_q": 3}), ("alpha_pattern", {"to_q": -3}),
                               ("rank_pattern", {"to_{1,200}q": 3}), ("use_rslora", "yes"), ("fan_in_fan_out", True)])
            if key == "r" and v == 77 and rules.get(at + "rank_pattern"):
                return None
            rules[at + key] = v
            tail = "77" if v == 77 else "LOHA" if v == "LOHA" else key
            if not self.config:
                self.meta["lora_adapter_metadata"] = json.dumps(rules)
        elif fault == "no tensors":
            self.tensors, tail = {}, "no tensors"
        elif fault == "two rules":
            if not self.config:
                return None
            self.meta, tail = {"lora_adapter_metadata": json.dumps({self.prefix + "r": 1})}, "both"
        elif fault == "alpha twice":
            if rules is None:
                return None
            self.put(p + ".alpha", (), [123.])
            tail = "123"
        return tail

    def write(self):
        os.makedirs(self.folder)
        path = self.folder + ("/adapter_model.safetensors" if self.config else "/x.safetensors")
        names = list(self.tensors)
        self.rng.shuffle(names)
        write(path, {n: self.tensors[n] for n in names}, self.meta)
        if self.config:
            with open(self.folder + "/adapter_config.json", "w") as f:
                json.dump(self.config, f)
            path = self.rng.choice([path, self.folder])
        return path


def differs(want, path, scale, base):
    got = read(path)
    if got.keys() != want.keys():
        return "other tensors"
    for k, w in want.items():
        for x, y, b in zip(w, got[k][1], base[k][1]):
            x = b + scale * (x - b)
            if abs(x - y) > 1e-5 * (1 + abs(x)):
                return f"{k}: {y} instead of {x}"
    return None


def main(checkpoint, file, tries, seed):
    base, failed = read(file), 0
    for i in range(int(tries)):
        rng = random.Random(f"{seed} {i}")
        t = Try(rng, base, "campaign")
        t.build()
        fault = t.spoil() if rng.random() < .5 else None
        path, scale = t.write(), rng.choice([1, 1, .5, -2])
        run = subprocess.run(["vfm-ckpt", "merge", "-q", "-l", "original", "--scale", str(scale), *["--skip-missing"] * t.skip, checkpoint,
                              path, "campaign.safetensors"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if t.skip and fault not in run.stderr:
            why = f"--skip-missing does not name '{fault}': {run.stderr}"
        elif fault is None or t.skip:
            why = run.stderr if run.returncode else differs(t.want, "campaign.safetensors", scale, base)
        else:
            why = None if run.returncode == 2 and fault in run.stderr and not os.path.exists("campaign.safetensors") else \
                f"status {run.returncode}, expected 2 and '{fault}': {run.stderr}"
        if why:
            failed += 1
            print(f"try {i} of seed {seed}: {t.style}, prefix '{t.prefix}': {why}")
        shutil.rmtree("campaign")
        if os.path.exists("campaign.safetensors"):
            os.remove("campaign.safetensors")
    print(f"{int(tries) - failed} passed, {failed} failed")
    return failed > 0


sys.exit(main(*sys.argv[1:]))
