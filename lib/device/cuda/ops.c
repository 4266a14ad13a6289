/* The op table.  Ops without a definition (weak symbols) are NULL. */
#include "device/cuda/cuda_sys.h"

static const struct vfm_ops ops = {
#define X(name) .name = vfm_cuda_##name,
	VFM_OP_LIST(X)
#undef X
};

#define X(name)                                                                                                        \
	static int range_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err)                 \
	{                                                                                                              \
		int rc;                                                                                                \
                                                                                                                       \
		vfm_cuda_range_push(#name);                                                                            \
		rc = vfm_cuda_##name(s, a, err);                                                                       \
		vfm_cuda_range_pop();                                                                                  \
		return rc;                                                                                             \
	}
VFM_OP_LIST(X)
#undef X

const struct vfm_ops *vfm_cuda_ops_table(bool ranges)
{
	static struct vfm_ops with;

	if (!ranges)
		return &ops;
#define X(name) with.name = ops.name ? range_##name : NULL;
	VFM_OP_LIST(X)
#undef X
	return &with;
}
