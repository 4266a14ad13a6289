/* overlap.c - forks to the communication stream and joins it, with deferred weight gradients in between. */
#include "net/mesh/overlap.h"

#include "device/dev/stall.h"
#include "net/tape/deferred.h"
#include "net/tape/node.h"

int vfm_overlap_fork(const struct vfm_mesh *m, struct vfm_tape *t, struct vfm_stream **s, struct vfm_err *err)
{
	struct vfm_stream *compute = vfm_tape_stream(t);
	struct vfm_event *ready = m->comm_ready;

	*s = m->comm_stream ? m->comm_stream : compute;
	if (m->comm_stream)
		compute->dev->comm_busy |= VFM_COMM_LAYERS;
	return vfm_stream_follow(*s, compute, &ready, err);
}

int vfm_overlap_join(const struct vfm_mesh *m, struct vfm_tape *t, int rc, struct vfm_err *err)
{
	struct vfm_stream *compute = vfm_tape_stream(t);
	struct vfm_err second = {0}, *e = rc < 0 ? &second : err;
	int waited;

	if (!m->comm_stream)
		return rc;
	compute->dev->comm_busy &= ~(unsigned)VFM_COMM_LAYERS;
	waited = compute->dev->t->event_record(m->comm_done, m->comm_stream, e);
	if (waited == 0)
		waited = vfm_stall_wait(m->comm_done, compute, VFM_STALL_COMM, e);
	return rc < 0 ? rc : waited;
}

int vfm_overlap_join_deferred(const struct vfm_mesh *m, struct vfm_tape *t, int rc, struct vfm_err *err)
{
	if (rc == 0 && m->comm_stream)
		rc = vfm_tape_run_deferred(t, err);
	return vfm_overlap_join(m, t, rc, err);
}
