#!/usr/bin/env python3
"""Write tiny models with random weights, in the folder formats of diffusers and transformers, without any download.

    tiny_models.py [--seed N] OUT [KIND ...]

  wan      OUT/wan/{vae,text_encoder,tokenizer}: AutoencoderKLWan, 4 channels, strides 4 x 8 x 8; UMT5, width 32
           OUT/wan/{image_encoder,image_processor}: the vision tower of CLIP, 257 rows of width 24
  wan22    OUT/wan22/vae: as Wan 2.2, patches of 2 x 2 pixels, 6 channels, strides 4 x 16 x 16
  t2       OUT/t2/vae: strides 2 x 4 x 4, 3 channels: a geometry that no public model has
  t5       OUT/t5: T5, width 24, its tokenizer beside it
  clip     OUT/clip: CLIP, pictures of 32 x 32, width 20; OUT/head.safetensors: linear layers 20 -> 8 -> 1
  llava    OUT/llava: LLaVA, a vision-language model that takes pictures
  qwen     OUT/qwen: Qwen2.5-VL, which takes videos (if torchvision is there)
  cosmos   OUT/cosmos/{transformer,vae,text_encoder,tokenizer,scheduler}: Cosmos-Predict 2.5 as diffusers stores it, 4
           channels; its text is 2 states of width 32, which the transformer projects to 20 features
  ltx      OUT/ltx/{transformer,vae,text_encoder,tokenizer,scheduler}: LTX-Video 0.9.1 as diffusers stores it, 6 channels,
           strides 8 x 32 x 32; T5 v1.1, width 32, with the tokenizer of tiny_wan.py
  hunyuan1 OUT/hunyuan1/{transformer,text_encoder,tokenizer,text_encoder_2,tokenizer_2}: HunyuanVideo as diffusers stores
           it, without an autoencoder; its texts are a Llama and the text tower of a CLIP, width 32
  hunyuan  OUT/hunyuan/{transformer,vae,text_encoder,tokenizer,text_encoder_2,tokenizer_2,scheduler,guider}:
           HunyuanVideo 1.5 as diffusers stores it, 4 channels; its texts are the language model of Qwen2.5-VL, width
           32, and T5 with the tokenizer of ByT5, width 24
"""

import argparse
import os

import torch

SIGNS = ("<pad>", "</s>", "<unk>")


def write_vae(folder, *, z, dim_mult, down, **more):
    """A Wan VAE whose config.json has the mean and deviation of its latents of random clips, as a trained one's has."""
    from diffusers import AutoencoderKLWan

    def make(mean, std):
        return AutoencoderKLWan(base_dim=8, z_dim=z, dim_mult=dim_mult, num_res_blocks=1, temperal_downsample=down,
                                latents_mean=mean, latents_std=std, **more).eval()

    vae = make([0.0] * z, [1.0] * z)
    with torch.no_grad():
        for name, p in vae.named_parameters():
            if name.endswith("bias"):
                p.normal_(std=0.1)
        clips = torch.nn.functional.interpolate(torch.rand(4, 3, 3, 8, 8), (5, 64, 64), mode="trilinear") * 2 - 1
        latents = vae.encode(clips).latent_dist.mode()
    std, mean = torch.std_mean(latents, (0, 2, 3, 4))
    scaled = make(mean.tolist(), std.tolist())
    scaled.load_state_dict(vae.state_dict())
    scaled.save_pretrained(folder)


def write_tokenizer(folder, signs=SIGNS, end="</s>", **more):
    """A token for each byte, so that every text has tokens.  end follows every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*signs, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    t = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>"))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if end:
        t.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, words.index(end))])
    fast = PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", **more)
    fast.save_pretrained(folder)
    return len(words)


def write_t5(folder, words, config, encoder, dim):
    n = write_tokenizer(words)
    sizes = dict(vocab_size=n, d_model=dim, d_kv=8, d_ff=2 * dim, num_layers=2, num_heads=2)
    encoder(config(**sizes, pad_token_id=0, eos_token_id=1, dropout_rate=0.0)).eval().save_pretrained(folder)


def wan(out):
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel, UMT5Config, UMT5EncoderModel

    write_vae(f"{out}/wan/vae", z=4, dim_mult=[1, 2, 2, 2], down=[False, True, True])
    write_t5(f"{out}/wan/text_encoder", f"{out}/wan/tokenizer", UMT5Config, UMT5EncoderModel, 32)
    model = CLIPVisionModel(CLIPVisionConfig(hidden_size=24, intermediate_size=48, num_hidden_layers=3,
                                             num_attention_heads=3, image_size=32, patch_size=2, hidden_act="gelu",
                                             initializer_range=0.2))
    model.eval().save_pretrained(f"{out}/wan/image_encoder")
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(f"{out}/wan/image_processor")


def wan22(out):
    write_vae(f"{out}/wan22/vae", z=6, dim_mult=[1, 2, 2, 2], down=[False, True, True], patch_size=2, is_residual=True,
              in_channels=12, out_channels=12, decoder_base_dim=8, scale_factor_spatial=16)


def t2(out):
    write_vae(f"{out}/t2/vae", z=3, dim_mult=[1, 2, 2], down=[False, True], scale_factor_temporal=2,
              scale_factor_spatial=4)


def t5(out):
    from transformers import T5Config, T5EncoderModel

    write_t5(f"{out}/t5", f"{out}/t5", T5Config, T5EncoderModel, 24)


def clip(out):
    from safetensors.torch import save_file
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    n = write_tokenizer(f"{out}/clip", model_max_length=40)
    tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    text = dict(tower, vocab_size=n, max_position_embeddings=40, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    picture = dict(tower, image_size=32, patch_size=8)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=picture, projection_dim=20))
    model.eval().save_pretrained(f"{out}/clip")
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(f"{out}/clip")
    layers = torch.nn.ModuleDict({"0": torch.nn.Linear(20, 8), "2": torch.nn.Linear(8, 1)})
    save_file({f"layers.{k}": t for k, t in layers.state_dict().items()}, f"{out}/head.safetensors")


# Each part of a message in its order.
CHAT = (
    "{% for m in messages %}{{ m.role }}: {% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
    "{% elif c.type == 'image' %}IMAGE{% else %}VIDEO{% endif %}{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def llava(out):
    from transformers import (CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig,
                              LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast)

    folder, signs = f"{out}/llava", (*SIGNS, "<image>")
    n = write_tokenizer(folder, signs, end=None, extra_special_tokens={"image_token": "<image>"})
    tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    model = LlavaForConditionalGeneration(LlavaConfig(
        vision_config=CLIPVisionConfig(**tower, image_size=32, patch_size=8),
        text_config=LlamaConfig(**tower, num_key_value_heads=2, vocab_size=n, max_position_embeddings=2048,
                                pad_token_id=0, eos_token_id=1, bos_token_id=2),
        image_token_index=signs.index("<image>"), image_seq_length=16))
    model.eval().save_pretrained(folder)
    LlavaProcessor(CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32),
                   PreTrainedTokenizerFast.from_pretrained(folder), patch_size=8, num_additional_image_tokens=1,
                   vision_feature_select_strategy="default",
                   chat_template=CHAT.replace("IMAGE", "<image>")).save_pretrained(folder)


def qwen(out):
    from transformers import (PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration,
                              Qwen2_5_VLProcessor, Qwen2VLImageProcessor)

    try:
        from transformers import Qwen2VLVideoProcessor
        Qwen2VLVideoProcessor()
    except ImportError as e:
        print(f"no tiny Qwen2.5-VL: {e}")
        return
    marks = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    folder, signs = f"{out}/qwen", (*SIGNS, *marks)
    n = write_tokenizer(folder, signs, end=None, extra_special_tokens=list(marks))
    start, end, image, video = (signs.index(m) for m in marks)
    tower = dict(hidden_size=32, intermediate_size=64, initializer_range=0.2)  # so that positions change captions
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(
        text_config=dict(tower, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=n,
                         pad_token_id=0, eos_token_id=1, bos_token_id=2, max_position_embeddings=2048,
                         rope_parameters={"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}),
        vision_config=dict(tower, depth=2, num_heads=2, patch_size=4, out_hidden_size=32, window_size=16,
                           fullatt_block_indexes=[1]),
        image_token_id=image, video_token_id=video, vision_start_token_id=start, vision_end_token_id=end))
    model.eval().save_pretrained(folder)
    size = {"shortest_edge": 64, "longest_edge": 4096}
    patches = dict(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)
    wrap = "<|vision_start|>{}<|vision_end|>".format
    Qwen2_5_VLProcessor(Qwen2VLImageProcessor(**patches), PreTrainedTokenizerFast.from_pretrained(folder),
                        Qwen2VLVideoProcessor(**patches), chat_template=CHAT.replace("IMAGE", wrap(marks[2])).replace(
                            "VIDEO", wrap(marks[3]))).save_pretrained(folder)


# Contents are a text or a list of parts.
MESSAGES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ c.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def language_model(words, layers):
    """The config of a language model of Qwen2.5-VL, and its tokenizer with a chat template."""
    from transformers import PreTrainedTokenizerFast

    marks = "<|im_start|>", "<|im_end|>"
    n = write_tokenizer(words, (*SIGNS, *marks), end=None, extra_special_tokens=list(marks))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(words)
    tokenizer.chat_template = MESSAGES
    tokenizer.save_pretrained(words)
    return dict(hidden_size=32, intermediate_size=64, initializer_range=0.2, num_hidden_layers=layers,
                num_attention_heads=2, num_key_value_heads=1, vocab_size=n, pad_token_id=0, eos_token_id=1,
                bos_token_id=2, max_position_embeddings=2048,
                rope_parameters={"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4})


def cosmos(out):
    import json

    from diffusers import CosmosTransformer3DModel, UniPCMultistepScheduler
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    folder = f"{out}/cosmos"
    write_vae(f"{folder}/vae", z=4, dim_mult=[1, 2, 2, 2], down=[False, True, True])
    text = language_model(f"{folder}/tokenizer", 2)
    vision = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=64, patch_size=4, out_hidden_size=32,
                  window_size=16, fullatt_block_indexes=[0])
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    model.eval().save_pretrained(f"{folder}/text_encoder")
    transformer = CosmosTransformer3DModel(
        in_channels=5, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=2, text_embed_dim=20,
        adaln_lora_dim=4, rope_scale=(1.0, 3.0, 3.0), extra_pos_embed_type=None, use_crossattn_projection=True,
        crossattn_proj_in_channels=64, encoder_hidden_states_channels=20)
    with torch.no_grad():
        for p in transformer.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    transformer.save_pretrained(f"{folder}/transformer")
    UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", use_karras_sigmas=True, sigma_max=200.0,
                            sigma_min=0.01).save_pretrained(f"{folder}/scheduler")
    with open(f"{folder}/model_index.json", "w") as f:
        json.dump({"_class_name": "Cosmos2_5_PredictBasePipeline", "_diffusers_version": "0.36.0",
                   "safety_checker": [None, None], "scheduler": ["diffusers", "UniPCMultistepScheduler"],
                   "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
                   "tokenizer": ["transformers", "Qwen2TokenizerFast"],
                   "transformer": ["diffusers", "CosmosTransformer3DModel"], "vae": ["diffusers", "AutoencoderKLWan"]}, f)


def write_ltx_vae(folder):
    """With the mean and deviation of its latents of random clips, as a trained one has."""
    from diffusers import AutoencoderKLLTXVideo

    vae = AutoencoderKLLTXVideo(
        latent_channels=6, block_out_channels=(8, 12, 16, 16), decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1,) * 5, decoder_layers_per_block=(1,) * 4, decoder_spatio_temporal_scaling=(True,) * 3,
        decoder_inject_noise=(True, True, True, False), upsample_residual=(True,) * 3, upsample_factor=(2,) * 3,
        timestep_conditioning=True).eval()
    with torch.no_grad():
        for name, p in vae.named_parameters():
            if name.endswith("bias") or "scale" in name and p.dim() > 0:
                p.normal_(std=0.1)
        clips = torch.nn.functional.interpolate(torch.rand(4, 3, 3, 8, 8), (9, 64, 64), mode="trilinear") * 2 - 1
        std, mean = torch.std_mean(vae.encode(clips).latent_dist.mode(), (0, 2, 3, 4))
        vae.latents_mean.copy_(mean)
        vae.latents_std.copy_(std)
    vae.save_pretrained(folder)


def ltx(out):
    import json

    from diffusers import FlowMatchEulerDiscreteScheduler, LTXVideoTransformer3DModel
    from transformers import T5Config, T5EncoderModel
    import tiny_wan

    folder = f"{out}/ltx"
    write_ltx_vae(f"{folder}/vae")
    words = tiny_wan.pieces()
    os.makedirs(f"{folder}/tokenizer")
    with open(f"{folder}/tokenizer/tokenizer.json", "w") as f:
        json.dump(tiny_wan.tokenizer(words), f)
    with open(f"{folder}/tokenizer/tokenizer_config.json", "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>",
                   "unk_token": "<unk>"}, f)
    text = T5Config(vocab_size=len(words), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
                    feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1)
    T5EncoderModel(text).eval().save_pretrained(f"{folder}/text_encoder")
    transformer = LTXVideoTransformer3DModel(in_channels=6, out_channels=6, num_attention_heads=2, attention_head_dim=24,
                                             cross_attention_dim=48, num_layers=2, caption_channels=32)
    with torch.no_grad():
        for p in transformer.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    transformer.save_pretrained(f"{folder}/transformer")
    FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_image_seq_len=1024, max_image_seq_len=4096,
                                    base_shift=0.95, max_shift=2.05, shift_terminal=0.1).save_pretrained(f"{folder}/scheduler")
    with open(f"{folder}/model_index.json", "w") as f:
        json.dump({"_class_name": "LTXPipeline", "_diffusers_version": "0.32.0",
                   "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
                   "text_encoder": ["transformers", "T5EncoderModel"],
                   "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
                   "transformer": ["diffusers", "LTXVideoTransformer3DModel"],
                   "vae": ["diffusers", "AutoencoderKLLTXVideo"]}, f)


def hunyuan(out):
    import json

    from diffusers import (AutoencoderKLHunyuanVideo15, ClassifierFreeGuidance, FlowMatchEulerDiscreteScheduler,
                           HunyuanVideo15Transformer3DModel)
    from transformers import ByT5Tokenizer, Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel, T5Config, T5EncoderModel

    folder = f"{out}/hunyuan"
    text = language_model(f"{folder}/tokenizer", 4)
    Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**text)).eval().save_pretrained(f"{folder}/text_encoder")
    words = ByT5Tokenizer()
    words.save_pretrained(f"{folder}/tokenizer_2")
    T5EncoderModel(T5Config(vocab_size=len(words), d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=2,
                            dropout_rate=0.0)).eval().save_pretrained(f"{folder}/text_encoder_2")
    AutoencoderKLHunyuanVideo15(latent_channels=4, block_out_channels=(8, 16, 32, 64, 64),
                                layers_per_block=1).save_pretrained(f"{folder}/vae")
    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=2, num_refiner_layers=1,
        mlp_ratio=2.0, text_embed_dim=32, text_embed_2_dim=24, image_embed_dim=12, rope_axes_dim=(4, 6, 6),
        task_type="t2v")
    with torch.no_grad():
        for p in transformer.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    transformer.save_pretrained(f"{folder}/transformer")
    FlowMatchEulerDiscreteScheduler(shift=5.0).save_pretrained(f"{folder}/scheduler")
    ClassifierFreeGuidance(guidance_scale=6.0).save_pretrained(f"{folder}/guider")
    with open(f"{folder}/model_index.json", "w") as f:
        json.dump({"_class_name": "HunyuanVideo15Pipeline", "_diffusers_version": "0.36.0",
                   "guider": ["diffusers", "ClassifierFreeGuidance"],
                   "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
                   "text_encoder": ["transformers", "Qwen2_5_VLTextModel"],
                   "text_encoder_2": ["transformers", "T5EncoderModel"],
                   "tokenizer": ["transformers", "Qwen2TokenizerFast"], "tokenizer_2": ["transformers", "ByT5Tokenizer"],
                   "transformer": ["diffusers", "HunyuanVideo15Transformer3DModel"],
                   "vae": ["diffusers", "AutoencoderKLHunyuanVideo15"]}, f)


def hunyuan1(out):
    from diffusers import HunyuanVideoTransformer3DModel
    from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaModel

    folder = f"{out}/hunyuan1"
    tower = dict(hidden_size=32, intermediate_size=64, num_attention_heads=2)
    # a token before each text, as that of Llama 3
    n = write_tokenizer(f"{folder}/tokenizer", end=None)
    LlamaModel(LlamaConfig(**tower, num_hidden_layers=4, num_key_value_heads=2, vocab_size=n, max_position_embeddings=2048,
                           pad_token_id=0, eos_token_id=1, bos_token_id=2)).eval().save_pretrained(f"{folder}/text_encoder")
    n = write_tokenizer(f"{folder}/tokenizer_2", model_max_length=40)
    CLIPTextModel(CLIPTextConfig(**tower, num_hidden_layers=2, vocab_size=n, max_position_embeddings=40, pad_token_id=0,
                                 eos_token_id=1, bos_token_id=2)).eval().save_pretrained(f"{folder}/text_encoder_2")
    HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=24, num_layers=1, num_single_layers=2,
        num_refiner_layers=1, mlp_ratio=2.0, text_embed_dim=32, pooled_projection_dim=32,
        rope_axes_dim=(8, 8, 8)).save_pretrained(f"{folder}/transformer")


KINDS = {f.__name__: f for f in (wan, wan22, t2, t5, clip, llava, qwen, cosmos, ltx, hunyuan, hunyuan1)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    p.add_argument("--seed", type=int, default=1, help="other weights")
    a = p.parse_args()
    if set(a.kinds) - set(KINDS):
        p.error(f"no such kind: {' '.join(sorted(set(a.kinds) - set(KINDS)))}")
    os.makedirs(a.out, exist_ok=True)
    for kind in a.kinds or KINDS:
        torch.manual_seed(a.seed)
        KINDS[kind](a.out)


main()
