#include "emu_dev.h"

#include <stdlib.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "cuda/cuda_int.h"

static const struct vfm_dev_table *cpu;
static struct vfm_dev_table table;
static struct vfm_ops ops;
static void *ws;
static size_t ws_bytes;

void *vfm_cuda_ws(struct vfm_stream *s, size_t bytes, struct vfm_err *err)
{
	(void)s, (void)err;
	if (bytes > ws_bytes) {
		free(ws);
		ws_bytes = (bytes + 255) / 256 * 256;
		ws = aligned_alloc(256, ws_bytes);
		if (!ws)
			abort();
	}
	memset(ws, 0xa5, bytes); /* nobody relies on what stood there */
	return ws ? ws : (void *)256;
}

int vfm_cuda_sms(struct vfm_stream *s)
{
	(void)s;
	return 3;
}

int vfm_cuda_launched(struct vfm_stream *s, const char *op, struct vfm_err *err)
{
	(void)s, (void)op, (void)err;
	return 0; /* the emulation ends the process */
}

struct vfm_dev *vfm_emu_open(struct vfm_err *err)
{
	struct vfm_dev *d = vfm_cpu_open(err);

	if (!d)
		return NULL;
	cpu = d->t;
	table = *cpu;
	ops = *cpu->ops;
#define X(name)                 \
	if (vfm_cuda_##name)    \
		ops.name = vfm_cuda_##name;
	VFM_OP_LIST(X)
#undef X
	table.ops = &ops;
	d->t = &table;
	return d;
}

bool vfm_emu_has(enum vfm_op_id op)
{
	switch (op) {
#define X(name)               \
	case VFM_OP_##name:   \
		return vfm_cuda_##name != NULL;
		VFM_OP_LIST(X)
#undef X
	case VFM_OP_N:
		break;
	}
	return false;
}
