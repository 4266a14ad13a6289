/* pipeline.c - slots, messages and actions of the schedule on one rank. */
#include "train/step/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/dev/stall.h"
#include "net/tape/deferred.h"
#include "net/tape/offload.h"
#include "spec/layout/in_flight.h"
#include "spec/layout/schedule.h"
#include "spec/model/linears.h"
#include "train/step/capture.h"
#include "train/step/micro.h"

enum pack_slot_state { FREE, LIVE, SENDING };

/* A posted receive: the residual stream or its gradient, from another pp stage. */
struct incoming {
	const struct vfm_action *a; /* the action that needs it; NULL: no receive is posted */
	struct vfm_tensor x;
	size_t bytes;
	struct vfm_event *here;
};

/* The state of a pack in a chunk, from its forward to the completion of its sends. */
struct pack_slot {
	enum pack_slot_state state;
	int64_t mb;
	int chunk;
	int64_t since; /* sequence number of the transition to SENDING */
	struct vfm_tape *tape;
	/* residual stream: received (NULL on the first chunk), and to be sent (on all but the last) */
	struct vfm_var *in, *out;
	void *h; /* memory of in */
	size_t h_bytes;
	struct vfm_event *fwd, *bwd; /* record the send of out, and of in's gradient */
};

struct vfm_pipeline {
	const struct vfm_config *c;
	const struct vfm_mesh *mesh;
	struct vfm_stream *stream, *fwd_side, *bwd_side; /* fwd_side, bwd_side: send streams; NULL with one pp stage */
	struct vfm_stream *recv_side;                    /* NULL: receive on the compute stream, when needed */
	struct incoming in[2];                           /* receives of the current action and the next one */
	struct vfm_model *model;
	struct vfm_event *ready;     /* for vfm_stream_follow: orders sends and receives after the compute stream */
	struct vfm_offload *offload; /* NULL: activations stay on the device */
	struct vfm_upload *upload;   /* of the next pack; NULL: a pack is uploaded when it is needed */
	struct pack_slot **slot;
	size_t n_slot, cap_slot;
	int64_t sent;            /* number of transitions to SENDING */
	double bubble_s, pack_s; /* host waits for other pp stages, and for packs */
	struct vfm_keeps *keeps; /* [layers of the model] */
	struct vfm_params *ps;
	struct vfm_capture *capture; /* NULL: packs run eagerly */
	/* the current step */
	int64_t step;
	const struct vfm_pack_source *src;
	const struct vfm_pipeline_losses *loss;
	struct vfm_pipeline_sums *sums;
	struct vfm_micro **micro; /* [n_packs]; NULL: not uploaded yet, or released */
	int64_t made;             /* number of packs uploaded, or being uploaded */
	int *left;                /* [n_packs] chunks that have not finished the pack */
	int64_t n_packs;
	bool split; /* the schedule separates W from B */
};

static bool posts_receives_early(const struct vfm_pipeline *p)
{
	const char *s = getenv("VFM_PP_EARLY");

	return p->mesh->send_stream && (s && *s ? !strcmp(s, "1") : p->stream->dev->async);
}

static bool recv_side_new(struct vfm_pipeline *p, struct vfm_err *err)
{
	const struct vfm_dev_table *t = p->stream->dev->t;

	p->recv_side = t->stream_new(p->stream->dev, true, err);
	for (int i = 0; p->recv_side && i < 2; i++) {
		p->in[i].here = t->event_new(p->stream->dev, err);
		if (!p->in[i].here)
			return false;
	}
	return p->recv_side != NULL;
}

struct vfm_pipeline *vfm_pipeline_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s,
	struct vfm_model *m, struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_pipeline *p = vfm_calloc(1, sizeof(*p));
	bool offloads = c->train.offload & VFM_OFFLOAD_ACTIVATIONS;

	*p = (struct vfm_pipeline){
		.c = c, .mesh = mesh, .stream = s, .model = m, .ps = ps, .fwd_side = mesh->send_stream};
	p->keeps = vfm_calloc((size_t)c->model.layers, sizeof(*p->keeps));
	vfm_keeps_fill(p->keeps, c->model.layers, (enum vfm_recompute)c->train.recompute, c->train.recompute_blocks,
		offloads ? VFM_KEEP_PRODUCTS | VFM_KEEP_INPUT : 0);
	p->keeps[c->model.layers - 1].offload = 0; /* its backward comes next */
	p->capture = vfm_capture_new(c, mesh, s, ps, vfm_model_chunks(m));
	p->split = mesh->p.schedule == VFM_PP_ZB && mesh->size[VFM_AX_PP] > 1;
	/* On a common stream a gradient could be queued after an activation whose receiver waits for the gradient. */
	if (mesh->send_stream && !(p->bwd_side = s->dev->t->stream_new(s->dev, true, err)))
		goto fail;
	if (posts_receives_early(p) && !recv_side_new(p, err))
		goto fail;
	if (s->dev->async && !(p->upload = vfm_upload_new(s, err)))
		goto fail;
	if (offloads && !(p->offload = vfm_offload_new(s, err)))
		goto fail;
	return p;
fail:
	vfm_pipeline_free(p);
	return NULL;
}

struct vfm_keeps *vfm_pipeline_keeps(struct vfm_pipeline *p)
{
	return p->keeps;
}

double vfm_pipeline_bubble(const struct vfm_pipeline *p)
{
	return p->bubble_s;
}

double vfm_pipeline_pack_wait(const struct vfm_pipeline *p)
{
	return p->pack_s;
}

/* ---- slots ---- */

static int slot_reset(struct vfm_pipeline *p, struct pack_slot *s, struct vfm_err *err)
{
	if (p->fwd_side) {
		TRY(vfm_stall_wait(s->fwd, p->stream, VFM_STALL_COMM, err));
		TRY(vfm_stall_wait(s->bwd, p->stream, VFM_STALL_COMM, err));
	}
	vfm_tape_reset(s->tape);
	vfm_dev_free(p->stream, s->h, s->h_bytes);
	s->h = NULL;
	s->in = s->out = NULL;
	s->state = FREE;
	return 0;
}

/* Blocks until at most `most` slots have pending sends.  spec/layout/in_flight.h counts the memory of the others. */
static int slots_drain(struct vfm_pipeline *p, size_t most, struct vfm_err *err)
{
	for (;;) {
		struct pack_slot *oldest = NULL;
		size_t n = 0;

		for (size_t i = 0; i < p->n_slot; i++) {
			struct pack_slot *s = p->slot[i];

			if (s->state != SENDING)
				continue;
			n++;
			if (!oldest || s->since < oldest->since)
				oldest = s;
		}
		if (n <= most)
			return 0;
		TRY(slot_reset(p, oldest, err));
	}
}

static struct pack_slot *slot_new(struct vfm_pipeline *p, struct vfm_err *err)
{
	const struct vfm_dev_table *t = p->stream->dev->t;
	struct pack_slot *s = vfm_calloc(1, sizeof(*s));

	s->tape = vfm_tape_new(p->stream);
	vfm_tape_defer_weights(s->tape, p->split);
	vfm_tape_set_offload(s->tape, p->offload);
	s->fwd = t->event_new(p->stream->dev, err);
	s->bwd = t->event_new(p->stream->dev, err);
	vfm_grow(&p->slot, &p->cap_slot, p->n_slot + 1, sizeof(struct pack_slot *));
	p->slot[p->n_slot++] = s;
	return s->fwd && s->bwd ? s : NULL;
}

static struct pack_slot *slot_acquire(struct vfm_pipeline *p, const struct vfm_action *a, struct vfm_err *err)
{
	struct pack_slot *s = NULL;

	for (size_t i = 0; i < p->n_slot && !s; i++)
		if (p->slot[i]->state == FREE)
			s = p->slot[i];
	if (!s)
		s = slot_new(p, err);
	if (!s)
		return NULL;
	s->state = LIVE;
	s->mb = a->mb;
	s->chunk = a->chunk;
	return s;
}

static int slot_find(
	const struct vfm_pipeline *p, const struct vfm_action *a, struct pack_slot **s, struct vfm_err *err)
{
	for (size_t i = 0; i < p->n_slot; i++) {
		*s = p->slot[i];
		if ((*s)->state == LIVE && (*s)->mb == a->mb && (*s)->chunk == a->chunk)
			return 0;
	}
	return vfm_fail(err, VFM_EUSAGE, "internal: backward of chunk %d, pack %lld without its forward", a->chunk,
		(long long)a->mb);
}

void vfm_pipeline_free(struct vfm_pipeline *p)
{
	const struct vfm_dev_table *t;

	if (!p)
		return;
	t = p->stream->dev->t;
	if (p->fwd_side)
		t->stream_sync(p->fwd_side, NULL);
	if (p->bwd_side) {
		t->stream_sync(p->bwd_side, NULL); /* it may still read memory that is freed below */
		t->stream_free(p->bwd_side);
	}
	free(p->keeps);
	if (p->recv_side) {
		t->stream_sync(p->recv_side, NULL);
		t->stream_free(p->recv_side);
	}
	for (int i = 0; i < 2; i++) {
		if (p->in[i].a) /* after a failed step */
			vfm_dev_free(p->stream, p->in[i].x.data, p->in[i].bytes);
		if (p->in[i].here)
			t->event_free(p->in[i].here);
	}
	for (size_t i = 0; i < p->n_slot; i++) {
		struct pack_slot *s = p->slot[i];

		vfm_tape_free(s->tape);
		vfm_dev_free(p->stream, s->h, s->h_bytes);
		if (s->fwd)
			t->event_free(s->fwd);
		if (s->bwd)
			t->event_free(s->bwd);
		free(s);
	}
	vfm_offload_free(p->offload);
	vfm_upload_free(p->upload);
	if (p->ready)
		t->event_free(p->ready);
	free(p->slot);
	vfm_capture_free(p->capture);
	free(p);
}

/* ---- messages ---- */

/* Enqueues a send on `side`, after the work on the compute stream.  Once `sent` passes, x may be freed. */
static int send_tensor(struct vfm_pipeline *p, struct vfm_comm *c, struct vfm_stream *side, struct vfm_tensor x,
	struct vfm_event *sent, struct vfm_err *err)
{
	const struct vfm_dev_table *t = p->stream->dev->t;

	if (vfm_numel(&x) == 0)
		return 0;
	TRY(vfm_stream_follow(side, p->stream, &p->ready, err));
	TRY(vfm_send(c, side, x, 1, err));
	return t->event_record(sent, side, err);
}

/* Allocates this rank's rows of the residual stream. */
static int residual_alloc(struct vfm_pipeline *p, const struct vfm_micro *u, struct vfm_tensor *x, size_t *bytes,
	const char *what, struct vfm_err *err)
{
	*x = vfm_t2(NULL, vfm_model_residual(p->model), u->in.stream_rows, p->c->model.hidden);
	*bytes = vfm_nbytes(x) ? vfm_nbytes(x) : 64;
	x->data = vfm_dev_alloc(p->stream, *bytes, what, err);
	return x->data ? 0 : VFM_EENV;
}

/* ---- packs ---- */

static void count_pack(struct vfm_pipeline *p, const struct vfm_pack *b, const struct vfm_mesh *mesh)
{
	const struct vfm_model_spec *m = &p->c->model;
	struct vfm_pack_sums sums = {0};
	double flops;

	for (int i = 0; i < b->n; i++)
		vfm_pack_sums_add_joint(&sums, b->grid[i], vfm_model_text_rows(m, b->cu_text[i + 1] - b->cu_text[i]),
			b->cu_text2 ? vfm_model_text2_rows(m, b->cu_text2[i + 1] - b->cu_text2[i]) : 0,
			b->image ? b->image_len : 0);
	flops = vfm_model_train_flops(m, &p->c->tuning, &sums);
	p->sums->own_flops += flops / mesh->size[VFM_AX_CP];
	if (mesh->coord[VFM_AX_CP] > 0)
		return;
	p->sums->flops += flops;
	p->sums->tokens += b->tokens;
	p->sums->samples += b->n;
}

/* Allocates the losses of a pack's segments. */
static int alloc_sample_losses(struct vfm_pipeline *p, int64_t mb, struct vfm_err *err)
{
	const struct vfm_model_in *in = &p->micro[mb]->in;
	struct vfm_tensor *each = &p->loss->each[mb];
	int32_t *sample = p->loss->sample[mb] = vfm_calloc((size_t)in->segs.n, sizeof(*sample));

	for (int g = 0; g < in->segs.n; g++)
		sample[g] = in->seg_given[g] ? ~in->seg_sample[g] : in->seg_sample[g];
	*each = vfm_t1(NULL, VFM_F32, in->segs.n);
	each->data = vfm_dev_alloc(p->stream, vfm_nbytes(each), "the losses of a pack's samples", err);
	return each->data ? 0 : VFM_EENV;
}

/* Gets the next pack and uploads it. */
static int make_next_micro(struct vfm_pipeline *p, struct vfm_err *err)
{
	int chunks = vfm_model_chunks(p->model);
	struct vfm_micro_opts o = {.config = p->c,
		.step = p->step,
		.ends = vfm_model_is_first(p->model, 0) || vfm_model_is_last(p->model, chunks - 1),
		.upload = p->upload};
	double before = vfm_now();
	int64_t mb = p->made;
	struct vfm_pack *b;
	int rc;

	TRY(p->src->next(p->src->ctx, &b, err));
	p->pack_s += vfm_now() - before;
	o.mesh = vfm_mesh_for(p->mesh, b->cp);
	count_pack(p, b, o.mesh);
	p->micro[mb] = vfm_calloc(1, sizeof(struct vfm_micro));
	p->left[mb] = chunks;
	p->made++;
	if (p->loss->each)
		p->loss->index[mb] = b->index;
	rc = vfm_micro_make(p->micro[mb], p->stream, &o, b, err);
	if (rc == 0 && p->loss->each && b->n > 0 && vfm_model_is_last(p->model, chunks - 1))
		rc = alloc_sample_losses(p, mb, err);
	p->micro[mb]->in.moe.loss = p->loss->sum;
	p->src->release(p->src->ctx, b);
	return rc;
}

/* Makes the pack of a microbatch ready for ops.  With uploads under compute it also begins that of the next pack of the
 * step, before the work on this one is enqueued.  Every pp stage requests packs in ascending order. */
static int micro_get(struct vfm_pipeline *p, int64_t mb, struct vfm_err *err)
{
	int64_t most = p->upload && mb + 1 < p->n_packs ? mb + 2 : mb + 1;

	while (p->made < most)
		TRY(make_next_micro(p, err));
	return vfm_micro_ready(p->micro[mb], err);
}

static void micro_drop(struct vfm_pipeline *p, int64_t mb)
{
	if (p->micro[mb])
		vfm_micro_release(p->micro[mb]);
	free(p->micro[mb]);
	p->micro[mb] = NULL;
}

/* ---- receives from other pp stages ---- */

/* Returns whether an action receives from another pp stage. */
static bool needs_receive(const struct vfm_pipeline *p, const struct vfm_action *a)
{
	return a->kind == VFM_DO_F ? !vfm_model_is_first(p->model, a->chunk)
				   : a->kind == VFM_DO_B && !vfm_model_is_last(p->model, a->chunk);
}

static struct vfm_comm *receive_comm(const struct vfm_pipeline *p, const struct vfm_action *a)
{
	return a->kind == VFM_DO_F ? p->mesh->fwd_in : p->mesh->bwd_in;
}

static int incoming_alloc(
	struct vfm_pipeline *p, const struct vfm_action *a, struct vfm_tensor *x, size_t *bytes, struct vfm_err *err)
{
	return residual_alloc(p, p->micro[a->mb], x, bytes,
		a->kind == VFM_DO_F ? "the input of a pp stage" : "the gradient of a pp stage", err);
}

/* Posts the receive of an action on the receive stream.  The receive waits for the compute stream, which frees and
 * reuses the memory in its own order. */
static int post_receive(struct vfm_pipeline *p, const struct vfm_action *a, struct vfm_err *err)
{
	const struct vfm_dev_table *t = p->stream->dev->t;
	struct incoming *in = p->in[0].a ? &p->in[1] : &p->in[0];

	TRY(micro_get(p, a->mb, err));
	TRY(incoming_alloc(p, a, &in->x, &in->bytes, err));
	in->a = a;
	if (vfm_numel(&in->x) == 0)
		return 0;
	TRY(vfm_stream_follow(p->recv_side, p->stream, &p->ready, err));
	TRY(vfm_recv(receive_comm(p, a), p->recv_side, in->x, 0, err));
	return t->event_record(in->here, p->recv_side, err);
}

/* Posts the receives of action i and of the next action, before action i.  A posted receive waits only for earlier
 * receives and for work enqueued on the compute stream before action i.  A receive on the compute stream would also
 * wait for action i.  Therefore early receives deadlock only if receives on the compute stream do. */
static int post_ahead(struct vfm_pipeline *p, const struct vfm_schedule *s, size_t i, struct vfm_err *err)
{
	for (size_t k = i; p->recv_side && k < s->n && k < i + 2; k++) {
		const struct vfm_action *a = &s->a[k];

		if (needs_receive(p, a) && p->in[0].a != a && p->in[1].a != a)
			TRY(post_receive(p, a, err));
	}
	return 0;
}

/* Receives the message of an action.  The caller owns x. */
static int receive_tensor(
	struct vfm_pipeline *p, const struct vfm_action *a, struct vfm_tensor *x, size_t *bytes, struct vfm_err *err)
{
	double before = vfm_comm_stats().wait_s, held = p->stream->dev->wait_s;
	int rc;

	for (int i = 0; i < 2; i++)
		if (p->in[i].a == a) {
			p->in[i].a = NULL;
			*x = p->in[i].x;
			*bytes = p->in[i].bytes;
			rc = vfm_numel(x) ? vfm_stall_wait(p->in[i].here, p->stream, VFM_STALL_BUBBLE, err) : 0;
			p->bubble_s += p->stream->dev->wait_s - held; /* host waits, on a synchronous device */
			return rc;
		}
	TRY(incoming_alloc(p, a, x, bytes, err));
	if (vfm_numel(x) == 0)
		return 0;
	vfm_stall_begin(p->stream, VFM_STALL_BUBBLE);
	rc = vfm_recv(receive_comm(p, a), p->stream, *x, 0, err);
	vfm_stall_end(p->stream);
	p->bubble_s += vfm_comm_stats().wait_s - before;
	return rc;
}

/* ---- actions ---- */

static int run_forward(struct vfm_pipeline *p, const struct vfm_action *a, struct vfm_err *err)
{
	bool first = vfm_model_is_first(p->model, a->chunk), last = vfm_model_is_last(p->model, a->chunk);
	struct vfm_micro *u;
	struct vfm_tensor h;
	struct pack_slot *s;
	int rc;

	TRY(micro_get(p, a->mb, err));
	u = p->micro[a->mb];
	s = slot_acquire(p, a, err);
	if (!s)
		return VFM_EENV;
	if (!first) {
		h.data = NULL;
		rc = receive_tensor(p, a, &h, &s->h_bytes, err);
		s->h = h.data;
		if (rc < 0)
			return rc;
		s->in = vfm_leaf(s->tape, h);
	}
	s->out = vfm_model_forward(p->model, s->tape, &u->in, a->chunk, s->in, p->keeps);
	if (last)
		vfm_g_mse(s->tape, s->out,
			&(struct vfm_mse){.target = u->target,
				.w = u->w,
				.seqs = &u->in.segs,
				.loss = p->loss->sum,
				.unweighted = p->loss->plain,
				.sample_loss = p->loss->each ? p->loss->each[a->mb] : (struct vfm_tensor){0}});
	TRY(vfm_tape_status(s->tape, err));
	return last ? 0 : send_tensor(p, p->mesh->fwd_out, p->fwd_side, s->out->v, s->fwd, err);
}

/* Ends the work of a chunk on a pack, except for pending sends. */
static int slot_finish(struct vfm_pipeline *p, struct pack_slot *s, struct vfm_err *err)
{
	if (--p->left[s->mb] == 0)
		micro_drop(p, s->mb);
	if (!s->in)
		return slot_reset(p, s, err);
	s->state = SENDING;
	s->since = p->sent++;
	return slots_drain(p, VFM_UNRECEIVED, err);
}

/* Runs the backward from the gradient received from the next pp stage. */
static int backward_from_next(
	struct vfm_pipeline *p, const struct vfm_action *a, struct pack_slot *s, struct vfm_err *err)
{
	struct vfm_tensor g = {0};
	size_t bytes;
	int rc;

	TRY_OUT(receive_tensor(p, a, &g, &bytes, err));
	TRY_OUT(vfm_tape_seed(s->tape, s->out, g, err));
	rc = vfm_tape_backward(s->tape, err);
out:
	vfm_dev_free(p->stream, g.data, bytes);
	return rc;
}

/* Sets *out to the slot; the caller must finish it. */
static int run_backward(struct vfm_pipeline *p, const struct vfm_action *a, struct pack_slot **out, struct vfm_err *err)
{
	struct pack_slot *s;

	TRY(slot_find(p, a, &s, err));
	*out = s;
	if (vfm_model_is_last(p->model, a->chunk))
		TRY(vfm_tape_backward(s->tape, err));
	else
		TRY(backward_from_next(p, a, s, err));
	if (s->in) {
		struct vfm_tensor g = vfm_leaf_grad(s->in);

		if (!vfm_has(&g))
			return vfm_fail(err, VFM_EUSAGE, "internal: chunk %d gave its input no gradient", a->chunk);
		TRY(send_tensor(p, p->mesh->bwd_out, p->bwd_side, g, s->bwd, err));
	}
	return 0;
}

static int run_action(struct vfm_pipeline *p, const struct vfm_action *a, struct vfm_err *err)
{
	struct pack_slot *s;

	switch (a->kind) {
	case VFM_DO_F:
		return run_forward(p, a, err);
	case VFM_DO_B:
		TRY(run_backward(p, a, &s, err));
		return p->split ? 0 : slot_finish(p, s, err);
	case VFM_DO_W:
		TRY(slot_find(p, a, &s, err));
		TRY(vfm_tape_weights(s->tape, err));
		return slot_finish(p, s, err);
	}
	return 0;
}

/* ---- captured packs ---- */

/* Captures f and b if they are forward and backward of the same pack.  Sets *done to false if the caller must run
 * them. */
static int capture_both(
	struct vfm_pipeline *p, const struct vfm_action *f, const struct vfm_action *b, bool *done, struct vfm_err *err)
{
	struct vfm_capture_shape shape;
	const struct vfm_model_in *in;
	struct vfm_err why = {0};
	struct pack_slot *s = NULL;
	int rc;

	*done = false;
	if (!p->capture || f->kind != VFM_DO_F || b->kind != VFM_DO_B || f->mb != b->mb || f->chunk != b->chunk)
		return 0;
	TRY(micro_get(p, f->mb, err));
	in = &p->micro[f->mb]->in;
	shape = (struct vfm_capture_shape){in->stream_rows, in->segs.n, in->text_seqs.total,
		in->host_cu_text2[in->seqs.n], in->segs.max_len, in->text_seqs.max_len};
	if (!vfm_capture_begin(p->capture, &shape))
		return 0;
	rc = run_forward(p, f, &why);
	if (rc == 0)
		rc = run_backward(p, b, &s, &why);
	*done = vfm_capture_end(p->capture, rc, &why);
	if (*done)
		return slot_finish(p, s, err);
	if (slot_find(p, f, &s, NULL) == 0) {
		vfm_tape_reset(s->tape);
		s->in = s->out = NULL;
		s->state = FREE;
	}
	return 0;
}

int64_t vfm_pipeline_graphs(const struct vfm_pipeline *p)
{
	return vfm_capture_launched(p->capture);
}

/* The wait for the slowest pp stage at the end of a step counts as bubble. */
static int wait_for_stages(struct vfm_pipeline *p, struct vfm_err *err)
{
	double before = vfm_comm_stats().wait_s;
	int rc;

	if (p->mesh->size[VFM_AX_PP] == 1)
		return 0;
	vfm_stall_begin(p->stream, VFM_STALL_BUBBLE);
	rc = vfm_barrier(p->mesh->group[VFM_AX_PP], p->stream, err);
	vfm_stall_end(p->stream);
	p->bubble_s += vfm_comm_stats().wait_s - before;
	return rc;
}

int vfm_pipeline_run(struct vfm_pipeline *p, int64_t step, int64_t n_packs, const struct vfm_pack_source *src,
	const struct vfm_pipeline_losses *loss, struct vfm_pipeline_sums *sums, struct vfm_err *err)
{
	struct vfm_schedule s = {0};
	int rc;

	p->step = step;
	p->n_packs = n_packs;
	p->made = 0;
	p->src = src;
	p->loss = loss;
	p->sums = sums;
	*sums = (struct vfm_pipeline_sums){0};
	TRY(vfm_schedule_make(&s, p->split ? VFM_PP_ZB : VFM_PP_1F1B, p->mesh->size[VFM_AX_PP],
		vfm_model_chunks(p->model), p->mesh->coord[VFM_AX_PP], n_packs, err));
	p->micro = vfm_calloc((size_t)n_packs, sizeof(struct vfm_micro *));
	p->left = vfm_calloc((size_t)n_packs, sizeof(*p->left));
	for (size_t i = 0; i < s.n; i++) {
		bool done = false;

		TRY_OUT(post_ahead(p, &s, i, err));
		if (i + 1 < s.n)
			TRY_OUT(capture_both(p, &s.a[i], &s.a[i + 1], &done, err));
		if (!done)
			TRY_OUT(run_action(p, &s.a[i], err));
		i += done;
	}
	TRY_OUT(slots_drain(p, 0, err));
	rc = wait_for_stages(p, err);
out:
	for (int64_t i = 0; i < n_packs; i++)
		micro_drop(p, i);
	free(p->micro);
	free(p->left);
	vfm_schedule_release(&s);
	return rc;
}
