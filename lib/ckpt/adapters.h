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
 * A layer of a file changes its weight W [out, in] by scale * P, summed in f32:
 *
 *	LoRA  lora_A, lora_B or lora_down, lora_up     P = B A
 *	LoHa  hada_w1_a, _b, hada_w2_a, _b             P = (w1_a w1_b) o (w2_a w2_b), element by element
 *	LoKr  lokr_w1 or lokr_w1_a, _b; lokr_w2 ...    P = kron(w1, w2); a w is whole, or a product of two matrices
 *
 * With a magnitude m (DoRA: lora_magnitude_vector of PEFT, dora_scale of LyCORIS), W becomes m (W + scale P) / |W +
 * scale P|.  The norm is that of each row, or of each input channel if dora_scale is [1, in].  A layer may also have a
 * bias .lora_B.bias, and full differences .diff or .w_norm, .diff_b or .b_norm for a bias, and .diff_m for the table
 * LAYER.modulation of the original release.
 *
 * The scale of a layer is alpha / rank by the rules of PEFT's LoraConfig, LoHaConfig or LoKrConfig, from
 * adapter_config.json or the metadata of diffusers.  alpha may also be the tensor LAYER.alpha; the default is the rank.
 * Without such rules, a LoKr of two whole matrices has the scale 1, as in LyCORIS.  Full differences have no alpha.
 * All calls are local; no device.
 */
#ifndef VFM_CKPT_ADAPTERS_H
#define VFM_CKPT_ADAPTERS_H

#include "ckpt/ckpt.h"

struct vfm_attach {
	const char *path;
	const char *part; /* "model" or "ema" of a checkpoint; without averages both mean "model" */
	double scale;
	bool skip_missing; /* leaves out layers that the model lacks; a warning names them */
};
/* Makes reads of the weights of c return W + scale * D, where D is the difference that a file makes of W.  Several
 * files add up; each D follows from W without the others.  If scale is 1, other parameters that the run with
 * adapters has trained replace those of c.
 *
 * VFM_EUSAGE, and the file adds nothing; the message names all tensors at fault:
 *   - an unknown tensor, half of a pair, another shape, a second tensor for the same weights
 *   - an unsupported scale, or trained parameters with a scale other than 1
 *   - a layer that the model lacks, unless skip_missing; with it, a file of which no layer fits */
int vfm_ckpt_attach(struct vfm_ckpt *c, const struct vfm_attach *o, struct vfm_err *err);

/* Opens a file of LoRA pairs as the adapters of a run that trains them on the base model: tensors
 * LAYER.lora_A.weight [blocks * rank, in] and LAYER.lora_B.weight [out, rank] with our names (spec/model/tuning.h).
 * Our fused layers consist of the pairs of separate layers, without a change of the rank.  Reads leave elements of
 * layers that the file lacks as they are.  Sets the rank, and the alpha that gives the scale of the file.  o->part
 * and o->scale are ignored.
 *
 * VFM_EUSAGE, with the names of all tensors at fault, as in vfm_ckpt_attach, and also:
 *   - the file has other kinds than LoRA, magnitudes, biases or differences
 *   - ranks or scales differ
 *   - the file divides the outputs of a layer otherwise
 *   - `path` is a checkpoint */
int vfm_ckpt_open_adapters(struct vfm_ckpt **out, struct vfm_ckpt *base, const struct vfm_attach *o, int64_t *rank,
	double *alpha, struct vfm_err *err);

struct vfm_adapters_export {
	const char *part; /* "model" or "ema" */
	int dtype;        /* enum vfm_dtype, or -1: that of the checkpoint */
	/* "peft": a directory with adapter_model.safetensors and adapter_config.json; "diffusers": a file with the
	 * prefix "transformer."; "original" or "comfyui": a file with the prefix "diffusion_model." and tensors
	 * LAYER.alpha; "kohya": the same with the prefix "lora_unet_", '_' for '.', lora_down and lora_up */
	const char *layout;
	const char *out;
};
/* Returns whether c is a checkpoint of a run that trains adapters. */
bool vfm_ckpt_is_adapters(const struct vfm_ckpt *c);
/* Writes the adapters of a checkpoint for other programs.  VFM_EUSAGE: the layout cannot store trained parameters of
 * the base model, or adapters of some layers, that the checkpoint has; the message names all of them. */
int vfm_ckpt_export_adapters(struct vfm_ckpt *c, const struct vfm_adapters_export *x, struct vfm_err *err);

#endif
