#!/usr/bin/env python3
"""Child of vfm-exec(7): the embeddings of CLIP.

    vfm-curate embed --of clips,captions --exec 'embed_clip.py clip-vit-large-patch14' ...

The vector of a clip is the mean of the unit vectors of its frames: the cosine of two is their similarity, and its own
length tells how alike the frames are.  That of a text is its unit vector; the folder must have the tokenizer."""

import vfm_exec  # first: it keeps stdout for the protocol

import os

import torch
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel


class Clip:
    """A CLIP model in evaluation mode, and what its inputs look like."""

    def __init__(self, options):
        self.folder = vfm_exec.subfolder(options.model)
        vfm_exec.check_config(self.folder, "model_type", "clip")
        self.device, self.dtype = vfm_exec.device(options.device), getattr(torch, options.dtype)
        self.model = vfm_exec.load(CLIPModel, self.folder, dtype=self.dtype).to(self.device)
        processor = AutoImageProcessor.from_pretrained(self.folder)
        self.mean = torch.tensor(processor.image_mean, device=self.device)
        self.std = torch.tensor(processor.image_std, device=self.device)
        size = self.model.config.vision_config.image_size
        self.input = {"kind": "frames", "frames": options.frames, "width": size, "height": size, "fit": "cover"}

    def frames(self, requests):
        """The unit vectors of all frames, [requests, frames, dim] float32."""
        x = torch.stack([vfm_exec.tensor(r["frames"]) for r in requests]).to(self.device)  # [n, F, H, W, 3]
        x = ((x / 255 - self.mean) / self.std).to(self.dtype).flatten(0, 1).permute(0, 3, 1, 2)
        v = self.model.visual_projection(self.model.vision_model(pixel_values=x).pooler_output).float()
        return torch.nn.functional.normalize(v, dim=-1).unflatten(0, (len(requests), -1))

    def tokenizer(self):
        """The tokenizer of the texts, or None."""
        files = "tokenizer.json", "vocab.json"
        if not any(os.path.isfile(os.path.join(self.folder, f)) for f in files):
            return None
        return AutoTokenizer.from_pretrained(self.folder)

    def texts(self, tokenizer, texts):
        """The unit vectors of texts, [texts, dim] float32; longer ones are cut."""
        most = self.model.config.text_config.max_position_embeddings
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=most, return_tensors="pt").to(self.device)
        pooled = self.model.text_model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).pooler_output
        return torch.nn.functional.normalize(self.model.text_projection(pooled).float(), dim=-1)


def options(description, **more):
    p = vfm_exec.options(description, dtype="float32", batch=16, **more)
    p.add_argument("--frames", type=int, default=8, help="frames of each clip (default 8)")
    return p


def main():
    a = options(__doc__, name="clip").parse_args()
    clip = Clip(a)

    @torch.inference_mode()
    def embed(requests):
        return [{"vector": vfm_exec.write(r, v)} for r, v in zip(requests, clip.frames(requests).mean(1))]

    tokenizer = clip.tokenizer()

    @torch.inference_mode()
    def embed_text(requests):
        vectors = clip.texts(tokenizer, [r["text"] for r in requests])
        return [{"vector": vfm_exec.write(r, v)} for r, v in zip(requests, vectors)]

    ops = {"embed": embed, "embed-text": embed_text} if tokenizer else {"embed": embed}
    vfm_exec.serve(ops, name=a.name, version=a.version, sha256=vfm_exec.identity(a, clip.folder),
                   batch=a.batch, input=clip.input)


if __name__ == "__main__":
    main()
