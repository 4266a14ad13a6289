#!/usr/bin/env python3
"""Child of vfm-exec(7): captions of a vision-language model of transformers.

    vfm-curate caption --exec 'caption_vlm.py Qwen2.5-VL-7B-Instruct' ...

Any model of AutoModelForImageTextToText whose processor has a chat template: Qwen2.5-VL, LLaVA, SmolVLM, InternVL.
The prompt comes with the request.  Frames become a video for processors that take one, or else a row of pictures;
--as says which.  Text is generated greedily, so that the same frames get the same caption."""

import vfm_exec  # first: it keeps stdout for the protocol

import torch
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoConfig, AutoModelForImageTextToText, AutoProcessor


def main():
    p = vfm_exec.options(__doc__, name=None, batch=4)
    p.add_argument("--frames", type=int, default=8, help="frames of each clip (default 8)")
    p.add_argument("--fps", type=float, help="frames at this rate, up to --frames, instead of evenly spaced ones")
    p.add_argument("--size", type=int, default=448, help="of the square that a frame is fitted in (default 448)")
    p.add_argument("--as", dest="kind", default="auto", choices=("auto", "video", "images"), help="of the frames")
    p.add_argument("--max-tokens", type=int, default=256, help="of an answer (default 256)")
    p.add_argument("--system", help="a system prompt")
    a = p.parse_args()

    folder = vfm_exec.subfolder(a.model)
    config = AutoConfig.from_pretrained(folder)
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise SystemExit(f"{folder}/config.json: model_type is {config.model_type}, expected a vision-language model")
    device = vfm_exec.device(a.device)
    processor = AutoProcessor.from_pretrained(folder)
    if not getattr(processor, "chat_template", None) or not hasattr(processor, "tokenizer"):
        raise SystemExit(f"{folder}: its processor is a {type(processor).__name__} without tokenizer or chat template")
    processor.tokenizer.padding_side = "left"
    model = vfm_exec.load(AutoModelForImageTextToText, folder, dtype=getattr(torch, a.dtype)).to(device)
    video = a.kind == "video" or a.kind == "auto" and getattr(processor, "video_processor", None) is not None

    def chat(prompt, n):
        shown = [{"type": "video"}] if video else [{"type": "image"}] * n
        messages = [{"role": "user", "content": [*shown, {"type": "text", "text": prompt}]}]
        if a.system:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": a.system}]})
        return processor.apply_chat_template(messages, add_generation_prompt=True)

    @torch.inference_mode()
    def caption(requests):
        clips = [vfm_exec.array(r["frames"]) for r in requests]  # each [F, H, W, 3]
        if video:
            rates = [r["frames"].get("fps") or None for r in requests]  # 0: unknown
            times = [{"total_num_frames": len(c), "fps": fps, "frames_indices": list(range(len(c)))}
                     for c, fps in zip(clips, rates)]
            shown = {"videos": clips, "video_metadata": times, "do_sample_frames": False}
        else:
            shown = {"images": [list(c) for c in clips]}
        texts = [chat(r["prompt"], len(c)) for r, c in zip(requests, clips)]
        # The template writes the special tokens that a text begins with.
        bos = processor.tokenizer.bos_token
        inputs = processor(text=texts, padding=True, return_tensors="pt", **shown,
                           add_special_tokens=not (bos and texts[0].startswith(bos))).to(device, model.dtype)
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=a.max_tokens)
        answers = processor.batch_decode(tokens[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
        return [{"caption": text.strip()} for text in answers]

    when = {"fps": a.fps, "max_frames": a.frames} if a.fps else {"frames": a.frames}
    vfm_exec.serve({"caption": caption}, name=a.name or model.config.model_type, version=a.version,
                   batch=a.batch, ragged=True, sha256=vfm_exec.identity(a, folder),
                   input={"kind": "frames", **when, "width": a.size, "height": a.size, "fit": "contain"})


main()
