/* emu_attn.c - attention of the emulated device: never cuDNN, because its choice (lib/device/cuda/attn.c) is not
 * compiled. */
#include "device/cuda/attn.h"

int vfm_cuda_attn(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err)
{
	return vfm_cuda_attn_own(s, a, err);
}

int vfm_cuda_attn_bwd(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err)
{
	return vfm_cuda_attn_bwd_own(s, a, err);
}
