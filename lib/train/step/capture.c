/* capture.c - decides which packs to capture, and falls back to eager after a failure.
 *
 * Every pack is captured anew, with its addresses, sizes and scalars; only the executable graph is reused, and updated
 * first (device/cuda/cuda_graph.c).
 *
 * The first packs run eagerly, because kernel loading and algorithm selection cannot be captured.  With
 * train.graphs=auto, a pack is captured if its shape, with sizes rounded to four significant bits, occurred among the
 * last ones.  After a failure because of a first use the next pack is captured again, up to 8 failures in a row.  After
 * any other failure all later packs run eagerly, and the log gives the reason once.
 */
#include "train/step/capture.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { EAGER_FIRST = 2, MOST_FAILED = 8, SHAPES = 32 };

struct vfm_capture {
	struct vfm_stream *stream;
	struct vfm_params *ps;
	bool *has_grad; /* [ps->n] gradients present before the capture */
	bool recurring; /* only packs whose shape occurred before */
	bool off;       /* set by a failure that would recur */
	int eager;      /* initial packs run eagerly, up to EAGER_FIRST */
	int failed;     /* consecutive failed captures */
	int64_t launched;
	struct {
		struct vfm_capture_shape shape;
		int64_t used; /* the number of the last pack; 0: empty */
	} seen[SHAPES];
	int64_t packs;
};

/* Returns the reason why no pack of this run can be captured; NULL if none is known. */
static const char *find_obstacle(
	const struct vfm_config *c, const struct vfm_mesh *mesh, const struct vfm_stream *s, int chunks)
{
	if (!s->dev->t->graph_begin)
		return "the device has no graphs";
	if (mesh->world_size > 1 || chunks > 1)
		return "packs of several ranks communicate";
	if (c->train.offload & VFM_OFFLOAD_ACTIVATIONS)
		return "activations are offloaded to the host";
	if (c->train.offload_weights)
		return "weights are offloaded to the host";
	if (vfm_model_tokens_choose(&c->model))
		return "with token choice the host reads the counts of the experts";
	return NULL;
}

struct vfm_capture *vfm_capture_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s,
	struct vfm_params *ps, int chunks)
{
	const char *obstacle = c->train.graphs ? find_obstacle(c, mesh, s, chunks) : NULL;
	bool is_auto = c->train.graphs == VFM_GRAPHS_AUTO;
	struct vfm_capture *x;

	if (obstacle && mesh->rank == 0 && !is_auto)
		vfm_info("train.graphs: packs run eagerly: %s", obstacle);
	if (!c->train.graphs || obstacle)
		return NULL;
	x = vfm_calloc(1, sizeof(*x));
	*x = (struct vfm_capture){
		.stream = s, .ps = ps, .has_grad = vfm_calloc(ps->n + 1, sizeof(*x->has_grad)), .recurring = is_auto};
	return x;
}

void vfm_capture_free(struct vfm_capture *c)
{
	if (!c)
		return;
	free(c->has_grad);
	free(c);
}

/* Rounds up to four significant bits. */
static int64_t round_shape(int64_t n)
{
	int64_t step = 1;

	while (n > 16 * step)
		step *= 2;
	return (n + step - 1) / step * step;
}

/* Returns whether the shape is among the last SHAPES different ones, and remembers it in place of the oldest. */
static bool find_shape(struct vfm_capture *c, const struct vfm_capture_shape *s)
{
	struct vfm_capture_shape r = {round_shape(s->tokens), s->segments, round_shape(s->text), round_shape(s->text2),
		round_shape(s->longest), round_shape(s->longest_text)};
	int at = 0;

	c->packs++;
	for (int i = 0; i < SHAPES; i++) {
		if (c->seen[i].used && memcmp(&c->seen[i].shape, &r, sizeof(r)) == 0) {
			c->seen[i].used = c->packs;
			return true;
		}
		if (c->seen[i].used < c->seen[at].used)
			at = i;
	}
	c->seen[at].shape = r;
	c->seen[at].used = c->packs;
	return false;
}

static bool wants_capture(struct vfm_capture *c, const struct vfm_capture_shape *shape)
{
	if (c->off)
		return false;
	if (c->recurring && !find_shape(c, shape))
		return false;
	if (c->eager == EAGER_FIRST)
		return c->ps->updating == 0; /* a graph cannot wait for updates that overlap it */
	c->eager++;
	return false;
}

static void count_failed_capture(struct vfm_capture *c, const struct vfm_err *why)
{
	c->failed++;
	if (c->stream->dev->graph_first && c->failed < MOST_FAILED)
		return;
	c->off = true;
	vfm_info("train.graphs: later packs run eagerly: %s", why->msg);
}

bool vfm_capture_begin(struct vfm_capture *c, const struct vfm_capture_shape *shape)
{
	struct vfm_err why;

	if (!c || !wants_capture(c, shape))
		return false;
	c->stream->dev->graph_first = false;
	vfm_params_save_grad_flags(c->ps, c->has_grad);
	if (c->stream->dev->t->graph_begin(c->stream, &why) == 0)
		return true;
	count_failed_capture(c, &why);
	return false;
}

bool vfm_capture_end(struct vfm_capture *c, int rc, const struct vfm_err *why)
{
	struct vfm_err end = {0};
	int ended = c->stream->dev->t->graph_end(c->stream, rc == 0, &end);

	if (rc < 0 || ended < 0) {
		vfm_params_restore_grad_flags(c->ps, c->has_grad);
		count_failed_capture(c, rc < 0 ? why : &end);
		return false;
	}
	c->failed = 0;
	c->launched++;
	return true;
}

int64_t vfm_capture_launched(const struct vfm_capture *c)
{
	return c ? c->launched : 0;
}
