#!/usr/bin/env python3
"""Child of vfm-exec(7): the image rows that Wan 2.1 and HunyuanVideo 1.5 read for image to video, of the vision tower of
CLIP or SigLIP.

    vfm-curate encode --condition --image-exec 'image_clip.py Wan2.1-I2V-14B-480P-Diffusers' ...
    vfm-sample --image FILE --image-exec 'image_clip.py HunyuanVideo-1.5-Diffusers-480p_i2v' ...

A picture becomes the hidden states of its tokens: of CLIP those before the last layer, as
WanImageToVideoPipeline.encode_image() takes them; of SigLIP the last ones after the norm, as
HunyuanVideo15ImageToVideoPipeline.encode_image() does.  With two pictures in a request, those of the second follow.  The
image processor beside the model (image_processor/, feature_extractor/ or the folder of the model) scales and crops the
pictures.
The options that change results are part of the identity, --dtype too: data of one is not mixed with data of another."""

import vfm_exec  # first: it keeps stdout for the protocol

import os

import numpy as np
import torch
import transformers


def image_processor(family):
    """The class with Pillow, so that rows do not depend on whether torchvision is installed."""
    name = family + "ImageProcessor"
    return getattr(transformers, name + "Pil", None) or getattr(transformers, name)  # the latter before transformers 5


def processor_folder(options, folder):
    """image_processor/ or feature_extractor/ of a pipeline, or the folder of the model."""
    for found in *(os.path.join(options.model, x) for x in ("image_processor", "feature_extractor")), folder:
        if os.path.isfile(os.path.join(found, "preprocessor_config.json")):
            return found
    raise SystemExit(f"{options.model}: no preprocessor_config.json in image_processor/, feature_extractor/ or {folder}")


def main():
    p = vfm_exec.options(__doc__, name="clip-vision", dtype="float32", batch=8)
    p.add_argument("--out", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="dtype of the rows")
    a = p.parse_args()

    folder = vfm_exec.subfolder(a.model, "image_encoder")
    kind = vfm_exec.check_config(folder, "model_type", "clip_vision_model", "clip", "siglip_vision_model", "siglip")
    family = "Siglip" if kind.startswith("siglip") else "CLIP"
    settings = processor_folder(a, folder)
    device = vfm_exec.device(a.device)
    processor = image_processor(family).from_pretrained(settings)
    model = vfm_exec.load(getattr(transformers, family + "VisionModel"), folder, dtype=getattr(torch, a.dtype)).to(device)

    @torch.inference_mode()
    def rows_of(pictures):
        """[height, width, 3] uint8, each -> [pictures, rows, dim]"""
        x = processor(images=pictures, input_data_format="channels_last", return_tensors="pt").pixel_values
        out = model(x.to(device, model.dtype), output_hidden_states=True)
        return out.last_hidden_state if family == "Siglip" else out.hidden_states[-2]

    def encode(requests):
        pictures = [vfm_exec.array(r["frames"]) for r in requests]  # [n, height, width, 3], each
        states = rows_of([x for several in pictures for x in several]).split([len(x) for x in pictures])
        return [{"rows": vfm_exec.write(r, x.flatten(0, 1), a.out)} for r, x in zip(requests, states)]

    # Also finds out whether the pictures of this processor have the size of the model.
    rows, dim = rows_of([np.zeros((64, 64, 3), np.uint8)]).shape[1:]
    vfm_exec.serve({"image-encode": encode}, name=a.name, version=a.version, batch=a.batch, ragged=True,
                   sha256=vfm_exec.identity(a, folder, settings=[settings]),
                   image={"dim": dim, "rows": rows})


main()
