/* adapters.h - low-rank adapters in files (spec/model/tuning.h): adds them to the weights of a model while these are
 * read, and writes them for other programs.
 *
 * Inputs are
 *
 * - a checkpoint or run of vfm-train with lora.rank
 * - a PEFT directory (adapter_model.safetensors, adapter_config.json)
 * - a .safetensors file with the names of a layout of the model (spec/model/foreign.h) after one prefix, with '.' or
 *   '_' ("lora_unet_blocks_0_self_attn_q")
 *
 * A file has pairs lora_A, lora_B or lora_down, lora_up; biases .lora_B.bias; full differences .diff, and .diff_b for a
 * bias.
 *
 * The scale of a layer is alpha / rank by the rules of PEFT's LoraConfig, from adapter_config.json or the metadata of
 * diffusers.  alpha may also be the tensor LAYER.alpha; the default is the rank.  Full differences have no alpha.  All
 * calls are local; no device.
 */
#ifndef VFM_CKPT_ADAPTERS_H
#define VFM_CKPT_ADAPTERS_H

#include "ckpt/ckpt.h"

/* Makes reads of the weights of c return W + scale * alpha / rank * B A (and W + scale * D for a difference), summed in
 * f32; several files add up.  If scale is 1, other parameters that the run with adapters has trained replace those of
 * c.  part: "model" or "ema" of a checkpoint; without averages both mean "model".
 *
 * VFM_EUSAGE, and the file adds nothing; the message names all tensors at fault:
 *   - an unknown tensor, half of a pair, another shape, a second tensor for the same weights
 *   - an unsupported scale, or trained parameters with a scale other than 1 */
int vfm_ckpt_attach(struct vfm_ckpt *c, const char *path, const char *part, double scale, struct vfm_err *err);

struct vfm_adapters_export {
	const char *part; /* "model" or "ema" */
	int dtype;        /* enum vfm_dtype, or -1: that of the checkpoint */
	/* "peft": a directory with adapter_model.safetensors and adapter_config.json; "diffusers": a file with the
	 * prefix "transformer."; "original": a file with the prefix "diffusion_model." and tensors LAYER.alpha */
	const char *layout;
	const char *out;
};
/* Returns whether c is a checkpoint of a run that trains adapters. */
bool vfm_ckpt_is_adapters(const struct vfm_ckpt *c);
/* Writes the adapters of a checkpoint for other programs.  VFM_EUSAGE: the layout cannot store trained parameters of
 * the base model, or adapters of some layers, that the checkpoint has; the message names all of them. */
int vfm_ckpt_export_adapters(struct vfm_ckpt *c, const struct vfm_adapters_export *x, struct vfm_err *err);

#endif
