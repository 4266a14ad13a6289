#include "emu_dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/fault.h"
#include "device/cuda/gemm.h"

static const struct vfm_dev_table *cpu;
static struct vfm_dev_table table;
static struct vfm_ops ops;

/* The scratch of the current op, followed by a guard. */
enum { WS_GUARD = 256 };
static unsigned char *ws;
static size_t ws_room, ws_bytes;
static bool ws_taken;

static void ws_die(const char *op, const char *why)
{
	fprintf(stderr, "emulated kernel: %s: %s\n", op, why);
	abort();
}

void *vfm_cuda_ws(struct vfm_stream *s, size_t bytes, struct vfm_err *err)
{
	size_t room = (bytes + 255) / 256 * 256 + WS_GUARD, lt = bytes >= VFM_LT_WS ? VFM_LT_WS : 0;

	(void)s, (void)err;
	if (ws_taken)
		ws_die("?", "asks for scratch a second time, or does not end with vfm_cuda_launched");
	if (room > ws_room) {
		free(ws);
		ws_room = room;
		ws = aligned_alloc(256, ws_room);
		if (!ws)
			abort();
		memset(ws, 0xa5, ws_room);
	}
	ws_taken = true;
	ws_bytes = bytes;
	/* The contents are undefined.  The first VFM_LT_WS bytes of large scratch are for a library that is not
	 * here; to fill them at each product would take half of the time. */
	memset(ws + lt, 0xa5, bytes - lt + WS_GUARD);
	return ws;
}

int vfm_cuda_sms(struct vfm_stream *s)
{
	(void)s;
	return 3;
}

int vfm_cuda_units(struct vfm_stream *s)
{
	return s->units;
}

int vfm_cuda_most_shared(struct vfm_stream *s)
{
	(void)s;
	return VFM_CUDA_LEAST_SHARED;
}

int vfm_cuda_launched(struct vfm_stream *s, const char *op, struct vfm_err *err)
{
	(void)s, (void)err;
	for (size_t i = 0; ws_taken && i < WS_GUARD; i++)
		if (ws[ws_bytes + i] != 0xa5)
			ws_die(op, "wrote behind its scratch");
	ws_taken = false;
	return 0; /* the emulation exits on errors */
}

static uint64_t faults[VFM_OP_N];

uint64_t *vfm_cuda_fault(struct vfm_stream *s, enum vfm_op_id op)
{
	(void)s;
	return faults + op;
}

void vfm_emu_forget_faults(void)
{
	memset(faults, 0, sizeof(faults));
}

static int stream_sync(struct vfm_stream *s, struct vfm_err *err)
{
	TRY(cpu->stream_sync(s, err));
	return vfm_faults_check(faults, err);
}

static int event_sync(struct vfm_event *e, struct vfm_err *err)
{
	TRY(cpu->event_sync(e, err));
	return vfm_faults_check(faults, err);
}

struct vfm_dev *vfm_emu_open(struct vfm_err *err)
{
	struct vfm_dev *d = vfm_cpu_open(err);

	if (!d)
		return NULL;
	cpu = d->t;
	table = *cpu;
	ops = *cpu->ops;
	ops.conv3d_packed_size = NULL; /* those of the CPU are for its own conv3d */
	ops.conv3d_pack = NULL;
#define X(name)                                                                                                        \
	if (vfm_cuda_##name)                                                                                           \
		ops.name = vfm_cuda_##name;
	VFM_OP_LIST(X)
#undef X
	table.ops = &ops;
	table.stream_sync = stream_sync;
	table.event_sync = event_sync;
	d->t = &table;
	return d;
}

bool vfm_emu_has(enum vfm_op_id op)
{
	switch (op) {
#define X(name)                                                                                                        \
	case VFM_OP_##name:                                                                                            \
		return vfm_cuda_##name != NULL;
		VFM_OP_LIST(X)
#undef X
	case VFM_OP_N:
		break;
	}
	return false;
}
