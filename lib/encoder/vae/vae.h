/* vae.h - causal video autoencoders: video to latents and back.
 *
 *	vfm_vae_open(&v, stream, &(struct vfm_vae_opts){.path = "Wan2.1_VAE.pth", .dtype = VFM_BF16}, err);
 *	vfm_vae_encode_begin(&s, v, 480, 832, err);
 *	k = vfm_vae_encode_push(s, rgb, 1 + 4 * n, latents, err);
 *	vfm_vae_end(s);
 *	vfm_vae_close(v);
 *
 * The first frame gives one latent frame.  Each further group of geometry.step frames (Wan: 4, others: the stride of
 * time) gives more.  An image is one frame.  Results do not depend on how the clip is split into pushes.  Memory does
 * not depend on the clip's length, except that Cosmos and HunyuanVideo 1.5 keep keys and values of all latent frames, 2
 * C h w numbers each.
 *
 * Encoders are causal.  The decoder of LTX-Video is not: each of its convolutions reads the next frame, too.  Its
 * pictures are therefore emitted some latent frames later, the last ones at the end of the clip.
 *
 * Decoders of LTX-Video 0.9.1 and later are conditioned on a time and draw noise.  The time is 0.05 and the share of
 * noise in latents 0.025, as in the examples of the model.  Noise is a function of frame, channel and position alone.
 *
 * Latents are the mode of the posterior, (mode - latents_mean) / latents_std per channel, in f32 as [T, C, h, w].  A
 * configuration of Cosmos may give both for each latent frame; the geometry then has max_frames.  Calls are local and
 * belong to the host thread of the stream.
 */
#ifndef VFM_ENCODER_VAE_VAE_H
#define VFM_ENCODER_VAE_VAE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/encoder_id.h"
#include "device/dev/dev.h"
#include "encoder/vae/condition.h"
#include "spec/model/dtype.h"
#include "spec/model/geometry.h"

/* Tiles in space, which overlap and are blended linearly, like enable_tiling of diffusers: they use less memory and
 * change the results.  Sizes are in pixels; in a VAE with patches, the encoder's tiles have these sizes in patches, as
 * in diffusers.  Wan only. */
struct vfm_vae_tile {
	int height, width;               /* of a tile; both 0: no tiles */
	int stride_height, stride_width; /* from tile to tile, at most the size */
};
/* A specification.  Weights of Wan 2.1 and 2.2 (arXiv 2503.20314, section 4.1; AutoencoderKLWan) are a folder of
 * diffusers (config.json and safetensors) or a release (Wan2.1_VAE.pth, Wan2.2_VAE.pth).  Those of Cosmos (arXiv
 * 2501.03575, section 3; AutoencoderKLCosmos: continuous tokenizers such as CV8x8x8) are a folder of diffusers.  Those
 * of LTX-Video (arXiv 2501.00103, section 3; AutoencoderKLLTXVideo) are a folder of diffusers or the .safetensors file
 * of a release, which also has the transformer.  Those of HunyuanVideo 1.5 (arXiv 2511.18870;
 * AutoencoderKLHunyuanVideo15) are a folder of diffusers or of the release. */
struct vfm_vae_opts {
	const char *path;            /* a folder or file of weights, or the folder of a whole release */
	enum vfm_dtype dtype;        /* of weights and activations: VFM_F32 or VFM_BF16 */
	bool no_encoder, no_decoder; /* skips this half */
	struct vfm_vae_tile tile;
};
struct vfm_vae;

/* Receives the pictures of a clip in their order, each rgb [height, width, 3], valid during the call.  A negative code
 * ends the decoding with it. */
struct vfm_picture_sink {
	int (*take)(void *ctx, const uint8_t *rgb, struct vfm_err *err);
	void *ctx;
};

/* Reads the configuration and checks all tensors of the files, which must not change until vfm_vae_close.  The first
 * session of a half moves its weights to the device.  The stream must outlive *v.  VFM_EUSAGE lists the tensors that
 * are missing, unknown or of another shape, or names the key of the configuration; VFM_EENV: out of memory. */
int vfm_vae_open(struct vfm_vae **v, struct vfm_stream *s, const struct vfm_vae_opts *o, struct vfm_err *err);
/* Frees the weights on the device; the next session reads them from the files again.  All sessions must have ended.
 * No-op for NULL. */
void vfm_vae_unload(struct vfm_vae *v);
/* All sessions must have ended.  No-op for NULL. */
void vfm_vae_close(struct vfm_vae *v);

/* Reads the geometry of a VAE from its configuration or the shapes of its tensors, without loading weights; `path` as
 * in vfm_vae_opts.  VFM_EUSAGE: the files are not those of a VAE. */
int vfm_vae_read_geometry(struct vfm_geometry *g, const char *path, struct vfm_err *err);
/* Returns the identity: "wan-vae" and the generation, "cosmos-vae" and the compression, "ltx-vae" and "plain" or
 * "timestep", or "hunyuan-vae" and the version, with the options that change results, and the sha256 of weights, configuration and options. */
const struct vfm_encoder_id *vfm_vae_id(const struct vfm_vae *v);

/* ---- whole clips, with or without tiles ---- */

/* Encodes rgb [frames, height, width, 3] to latents [T, C, h, w] (sizes: vfm_geometry_latent).  VFM_EUSAGE: the sizes
 * do not fit. */
int vfm_vae_encode(struct vfm_vae *v, const uint8_t *rgb, int64_t frames, int64_t height, int64_t width, float *latents,
	struct vfm_err *err);
/* Encodes the condition of image to video: a clip of `frames` frames that are 0 (grey), except for the given pictures:
 * the first frame and, if there are two, the last one.  Computes every grey frame, although results become constant:
 * each causal convolution with a kernel of 3 frames reads 2 past ones, and those of the encoder of Wan 2.1 together
 * read 28 latent frames.  Equal results would begin after picture 113, and most clips end before. */
int vfm_vae_encode_given(
	struct vfm_vae *v, const struct vfm_pictures *p, int64_t frames, float *latents, struct vfm_err *err);
/* Decodes latents [T, C, h, w] to pictures [vfm_geometry_pictures, height, width, 3], rounded to u8 in `rgb` and as
 * numbers in [-1, 1] in `exact`; either may be NULL. */
int vfm_vae_decode(struct vfm_vae *v, const float *latents, int64_t t, int64_t h, int64_t w, uint8_t *rgb, float *exact,
	struct vfm_err *err);
/* The same in u8, picture by picture: without tiles, the clip is never in memory as a whole. */
int vfm_vae_decode_to(struct vfm_vae *v, const float *latents, int64_t t, int64_t h, int64_t w,
	const struct vfm_picture_sink *to, struct vfm_err *err);

/* ---- encoding clips in pushes, without tiles ---- */

struct vfm_vae_session;
/* VFM_EUSAGE: the sizes do not fit, or v uses tiles. */
int vfm_vae_encode_begin(
	struct vfm_vae_session **s, struct vfm_vae *v, int64_t height, int64_t width, struct vfm_err *err);
/* Encodes the next frames: rgb [n, height, width, 3], n = 1 + k step in the first call, then k step.  Writes latent
 * frames to latents [., C, h, w] and returns their number.  After an error the session can only be ended. */
int vfm_vae_encode_push(struct vfm_vae_session *s, const uint8_t *rgb, int64_t n, float *latents, struct vfm_err *err);
void vfm_vae_end(struct vfm_vae_session *s); /* accepts NULL */

#endif
