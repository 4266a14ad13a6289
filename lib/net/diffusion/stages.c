/* stages.c - runs the chunks of a model, and passes the residual stream from one pp stage to the next. */
#include "net/diffusion/stages.h"

#include "comm/coll/comm.h"
#include "device/dev/dev.h"
#include "device/ops/tensor.h"

int vfm_stages_new(struct vfm_stages *s, const struct vfm_mesh *mesh, struct vfm_stream *stream, struct vfm_err *err)
{
	*s = (struct vfm_stages){.mesh = mesh, .stream = stream};
	s->tape = vfm_tape_new(stream);
	vfm_tape_set_recording(s->tape, false);
	s->sent = stream->dev->t->event_new(stream->dev, err);
	return s->sent ? 0 : VFM_EENV;
}

/* Sends the output of a chunk to the next pp stage.  The compute stream waits, because the memory is freed next. */
static int send_output(struct vfm_stages *s, struct vfm_tensor x, struct vfm_err *err)
{
	const struct vfm_dev_table *t = s->stream->dev->t;

	if (vfm_numel(&x) == 0)
		return 0;
	TRY(vfm_stream_follow(s->mesh->send_stream, s->stream, &s->ready, err));
	TRY(vfm_send(s->mesh->fwd_out, s->mesh->send_stream, x, 1, err));
	TRY(t->event_record(s->sent, s->mesh->send_stream, err));
	return t->event_wait(s->sent, s->stream, err);
}

/* Runs a chunk, and sends its output.  The output of the last one is *pred instead. */
static int run_chunk(struct vfm_stages *s, struct vfm_model *m, const struct vfm_model_in *in, int chunk,
	struct vfm_tensor *pred, struct vfm_err *err)
{
	struct vfm_tensor x = vfm_t2(NULL, vfm_model_residual(m), in->stream_rows, vfm_model_width(m));
	bool first = vfm_model_is_first(m, chunk);
	size_t bytes = vfm_nbytes(&x) ? vfm_nbytes(&x) : 64;
	struct vfm_var *v;
	int rc = 0;

	if (!first) {
		x.data = vfm_dev_alloc(s->stream, bytes, "the input of a pp stage", err);
		rc = x.data ? 0 : VFM_EENV;
		if (rc == 0 && vfm_numel(&x))
			rc = vfm_recv(s->mesh->fwd_in, s->stream, x, 0, err);
		TRY_OUT(rc);
	}
	v = vfm_model_forward(m, s->tape, in, chunk, first ? NULL : vfm_input(s->tape, x), NULL);
	TRY_OUT(vfm_tape_status(s->tape, err));
	if (vfm_model_is_last(m, chunk)) {
		*pred = v->v;
	} else {
		rc = send_output(s, v->v, err);
		vfm_tape_reset(s->tape);
	}
out:
	vfm_dev_free(s->stream, x.data, bytes);
	return rc;
}

int vfm_stages_forward(struct vfm_stages *s, struct vfm_model *m, const struct vfm_model_in *in,
	struct vfm_tensor *pred, struct vfm_err *err)
{
	*pred = (struct vfm_tensor){0};
	for (int c = 0; c < vfm_model_chunks(m); c++)
		TRY(run_chunk(s, m, in, c, pred, err));
	return 0;
}

void vfm_stages_end(struct vfm_stages *s)
{
	vfm_tape_reset(s->tape);
}

void vfm_stages_release(struct vfm_stages *s)
{
	const struct vfm_dev_table *t = s->stream ? s->stream->dev->t : NULL;

	vfm_tape_free(s->tape);
	if (s->sent)
		t->event_free(s->sent);
	if (s->ready)
		t->event_free(s->ready);
	*s = (struct vfm_stages){0};
}
