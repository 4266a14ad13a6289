/* adapters.h - low-rank adapters in files (spec/tuning.h): added to the weights of a model as they are read, and
 * written for other programs.
 *
 * Adapters are read from
 *
 *	a checkpoint, or a run, of vfm-train with lora.rank
 *	a directory of PEFT: adapter_model.safetensors, adapter_config.json
 *	a .safetensors file with PEFT's names ("transformer.blocks.0.attn1.to_q.lora_A.weight", behind any prefix) or
 *	those of the original release ("diffusion_model.blocks.0.self_attn.q.lora_A.weight"), also with lora_down and
 *	lora_up
 *
 * The scale of a layer is alpha / rank.  alpha is that of adapter_config.json, of the metadata that diffusers writes,
 * or of the tensor LAYER.alpha; without any it is the rank.  All calls are local; no device.
 */
#ifndef VFM_CKPT_ADAPTERS_H
#define VFM_CKPT_ADAPTERS_H

#include "ckpt/ckpt.h"

/* From here on reads of the weights of c return W + scale * alpha / rank * B A for the layers that have an adapter,
 * summed in f32; several files add up.  Other parameters that a run with adapters has trained replace those of c, if
 * scale is 1. part: "model" or "ema" of a checkpoint; without averages both are "model".  VFM_EUSAGE: a layer or a
 * shape that does not fit the model, a form of adapter that is not supported (DoRA, per-layer alpha), or trained
 * parameters with another scale; the message names all of them. */
int vfm_ckpt_attach(struct vfm_ckpt *c, const char *path, const char *part, double scale, struct vfm_err *err);

struct vfm_adapters_export {
	const char *part; /* "model" or "ema" */
	int dtype;        /* enum vfm_dtype, or -1: that of the checkpoint */
	/* "peft": a directory with adapter_model.safetensors and adapter_config.json; "diffusers": a file with the
	 * prefix "transformer."; "original": a file with the prefix "diffusion_model." and tensors LAYER.alpha */
	const char *layout;
	const char *out;
};
/* Whether c is the checkpoint of a run that trains adapters. */
bool vfm_ckpt_is_adapters(const struct vfm_ckpt *c);
/* Writes the adapters of a checkpoint for other programs.  VFM_EUSAGE: it holds trained parameters of the base model,
 * or adapters of layers, that the layout cannot store; the message names all of them. */
int vfm_ckpt_export_adapters(struct vfm_ckpt *c, const struct vfm_adapters_export *x, struct vfm_err *err);

#endif
