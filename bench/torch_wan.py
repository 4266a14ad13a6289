#!/usr/bin/env python3
"""A peer of `vfm-bench step`: one training step of Wan in PyTorch with diffusers, or of LoRA on it with peft.

The network is WanTransformer3DModel of diffusers, trained as its users do: bf16 by autocast, over fp32 weights in full
training and over bf16 weights with fp32 adapters in LoRA.  AdamW is the fused one and sees the trained weights alone.
Takes the options of torch_step.py.  Prints one JSON object.
"""
import json
import sys

sys.dont_write_bytecode = True
from torch_step import arguments, restart_with_threads, time_steps  # noqa: E402

# the linear layers that vfm's default of lora.targets names: attention and MLP of the blocks
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]
PATCH = (1, 2, 2)


def own_options(p):
    p.add_argument("--ffn", type=int, default=0, help="width of the MLP (4 x hidden)")
    p.add_argument("--channels", type=int, default=16)
    p.add_argument("--lora", type=int, default=0, metavar="RANK", help="train adapters of this rank (0: all weights)")
    p.add_argument("--checkpointing", action="store_true", help="recompute every block in the backward")


def build(a, torch, diffusers):
    model = diffusers.WanTransformer3DModel(
        patch_size=PATCH, num_attention_heads=a.heads, attention_head_dim=a.hidden // a.heads, in_channels=a.channels,
        out_channels=a.channels, text_dim=a.text_dim, freq_dim=256, ffn_dim=a.ffn or 4 * a.hidden, num_layers=a.layers)
    with torch.no_grad():
        for name, p in model.named_parameters():  # none is zero: zeros have their own speed
            torch.nn.init.normal_(p, mean=1.0 if "norm" in name and p.ndim == 1 and "weight" in name else 0.0,
                                  std=0.7 / p[0].numel() ** 0.5 if p.ndim > 1 else 0.1)
    model.train()
    if a.checkpointing:
        model.enable_gradient_checkpointing()
    if a.lora:
        import peft

        model.requires_grad_(False)
        for m in model.modules():
            if a.dtype == "bf16" and isinstance(m, torch.nn.Linear):
                m.to(torch.bfloat16)
        model.add_adapter(peft.LoraConfig(r=a.lora, lora_alpha=a.lora, target_modules=TARGETS))
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.data = p.data.float()
                torch.nn.init.normal_(p, std=0.05)
    return model


def main():
    a = arguments(__doc__, own_options)
    restart_with_threads(a)
    import diffusers
    import torch

    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = build(a, torch, diffusers)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    grid = [int(v) for v in a.grid.split(",")]
    x0 = torch.randn(a.samples, a.channels, *(n * p for n, p in zip(grid, PATCH)))
    noise = torch.randn_like(x0)
    t = torch.sigmoid(torch.randn(a.samples))
    text = torch.randn(a.samples, a.text_len, a.text_dim)
    run = torch.compile(model) if a.compile else model

    def forward():
        x = torch.lerp(x0, noise, t[:, None, None, None, None])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16"):
            pred = run(x, 1000 * t, text, return_dict=False)[0]
        return torch.nn.functional.mse_loss(pred.float(), noise - x0)

    result = time_steps(a, optimizer, forward)
    print(json.dumps({
        "torch": torch.__version__, "diffusers": diffusers.__version__, "hidden": a.hidden, "layers": a.layers,
        "heads": a.heads, "samples": a.samples, "tokens": grid[0] * grid[1] * grid[2], "dtype": a.dtype,
        "threads": a.threads, "lora": a.lora, "trained": sum(p.numel() for p in trained), "compile": a.compile, **result}))


if __name__ == "__main__":
    main()
