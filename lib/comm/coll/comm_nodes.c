/* Sums in two levels: f32 within a node, bf16 between nodes. */
#include "comm/coll/comm_nodes.h"

#include <stdlib.h>

#include "base/mem.h"
#include "device/ops/ops.h"

enum { PIECE = 16 << 20 };

/* ---- the two groups ---- */

int vfm_comm_node(struct vfm_comm *c, int rank)
{
	const struct vfm_comm *host = vfm_comm_host(c);

	return host->t->node ? host->t->node(host, rank) : 0;
}

bool vfm_comm_spans_nodes(struct vfm_comm *c)
{
	for (int r = 1; r < c->size; r++)
		if (vfm_comm_node(c, r) != vfm_comm_node(c, 0))
			return true;
	return false;
}

static struct vfm_comm_place place_on_node(const void *ctx, int rank)
{
	return (struct vfm_comm_place){rank / *(const int *)ctx, rank};
}

static struct vfm_comm_place place_across(const void *ctx, int rank)
{
	return (struct vfm_comm_place){rank % *(const int *)ctx, rank};
}

int vfm_comm_nodes_new(struct vfm_comm *c, struct vfm_comm_nodes *n, struct vfm_err *err)
{
	int each = 1;

	*n = (struct vfm_comm_nodes){0};
	while (each < c->size && vfm_comm_node(c, each) == vfm_comm_node(c, 0))
		each++;
	if (each == c->size)
		return 0;
	for (int r = 0; r < c->size; r++) {
		bool first = r % each == 0;

		if (c->size % each == 0 && (r == 0 || first == (vfm_comm_node(c, r) != vfm_comm_node(c, r - 1))))
			continue;
		return vfm_fail(err, VFM_EUSAGE,
			"parallel.grad_reduce: the %d ranks of '%s' do not form equal parts on the nodes, in their "
			"order; "
			"fp32 would fit",
			c->size, c->name);
	}
	TRY(vfm_comm_split_by(c, (struct vfm_comm_places){place_on_node, &each}, false, "node", &n->node, err));
	TRY(vfm_comm_split_by(c, (struct vfm_comm_places){place_across, &each}, false, "across", &n->across, err));
	n->all = c;
	return 0;
}

void vfm_comm_nodes_release(struct vfm_comm_nodes *n)
{
	vfm_comm_free(n->across);
	vfm_comm_free(n->node);
	*n = (struct vfm_comm_nodes){0};
}

/* ---- arithmetic on a stream, or on the host thread of a stream that runs no ops ---- */

struct nodes_sum {
	int64_t parts, n; /* of x */
	int64_t stride;   /* elements between the parts of x */
	int64_t y_stride; /* and of y; 0: n */
	const void *x;    /* [parts, n]; dx: f32 or bf16 */
	void *y;          /* sum: [n]; else [parts, n] */
	enum vfm_dtype dx, dy;
	bool sum; /* else a cast */
};

static float read_element(const void *p, enum vfm_dtype dt, int64_t i)
{
	return dt == VFM_BF16 ? vfm_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static void write_element(void *p, enum vfm_dtype dt, int64_t i, float v)
{
	if (dt == VFM_BF16)
		((uint16_t *)p)[i] = vfm_f32_to_bf16(v);
	else
		((float *)p)[i] = v;
}

static int compute_on_host(void *arg, struct vfm_err *err)
{
	const struct nodes_sum *a = arg;
	int64_t y_stride = a->y_stride ? a->y_stride : a->n;

	(void)err;
	for (int64_t i = 0; a->sum && i < a->n; i++) {
		float v = 0;

		for (int64_t k = 0; k < a->parts; k++)
			v += read_element(a->x, a->dx, k * a->stride + i);
		write_element(a->y, a->dy, i, v);
	}
	for (int64_t k = 0; !a->sum && k < a->parts; k++)
		for (int64_t i = 0; i < a->n; i++)
			write_element(a->y, a->dy, k * y_stride + i, read_element(a->x, a->dx, k * a->stride + i));
	return 0;
}

static int compute_on_stream(struct vfm_stream *s, struct nodes_sum a, struct vfm_err *err)
{
	struct vfm_tensor x = vfm_t2((void *)(uintptr_t)a.x, a.dx, a.parts, a.n), y = vfm_t2(a.y, a.dy, a.parts, a.n);

	if (a.n == 0)
		return 0;
	if (s->host_only)
		return s->dev->t->host_call(s, compute_on_host, &a, sizeof(a), err);
	x.stride[0] = a.stride;
	if (a.sum)
		return vfm_op_sum_parts(s, &(struct vfm_sum_parts){.x = x, .y = vfm_t1(a.y, a.dy, a.n)}, err);
	if (a.y_stride)
		y.stride[0] = a.y_stride;
	return vfm_op_axpby(s, &(struct vfm_axpby){.alpha = 1, .x = x, .y = y}, err);
}

/* ---- the collectives ---- */

static int64_t round_up_to(int64_t n, int64_t step)
{
	return (n + step - 1) / step * step;
}

/* Elements of a rank's part of n, if `parts` ranks divide them. */
static int64_t elements_of_part(int64_t n, int parts)
{
	return round_up_to((n + parts - 1) / parts, 64);
}

/* Elements of each share that one reduce_scatter within the node sums: its operand has PIECE bytes. */
static int64_t elements_of_piece(const struct vfm_comm_nodes *n, int64_t each)
{
	int64_t fit = PIECE / 4 / n->all->size, pieces = fit ? (each + fit - 1) / fit : each;

	if (pieces > n->across->size) /* but not more of them than nodes */
		pieces = n->across->size;
	return pieces > 1 ? elements_of_part(each, (int)pieces) : each;
}

size_t vfm_nodes_scratch(const struct vfm_comm_nodes *n, int64_t elements, bool scatter)
{
	int64_t each =
		scatter ? elements : elements_of_part(elements_of_part(elements, n->node->size), n->across->size);

	return 2 * (size_t)n->across->size * (size_t)each * 2 +
		(scatter && n->node->size > 1 ? 4 * (size_t)(elements_of_piece(n, each) * n->all->size) : 0);
}

/* out [nodes, each] bf16 = the sums within this node of the shares of its ranks' places.  A rank's shares of a piece
 * are moved to one row of x first, so that a single reduce_scatter sums them for all nodes. */
static int sum_within_node(const struct vfm_comm_nodes *n, struct vfm_stream *s, const float *in, int64_t each,
	float *x, uint16_t *out, struct vfm_err *err)
{
	int64_t piece = elements_of_piece(n, each), nodes = n->across->size, local = n->node->size;

	for (int64_t at = 0; at < each; at += piece) {
		int64_t m = at + piece < each ? piece : each - at, row = nodes * m;
		struct nodes_sum move = {.parts = nodes, .n = m, .stride = local * each, .dx = VFM_F32, .dy = VFM_F32},
				 down = {.parts = nodes,
					 .n = m,
					 .stride = m,
					 .y_stride = each,
					 .x = x + row * n->node->rank,
					 .dx = VFM_F32,
					 .y = out + at,
					 .dy = VFM_BF16};

		for (int64_t i = 0; i < local; i++) {
			move.x = in + i * each + at;
			move.y = x + i * row;
			TRY(compute_on_stream(s, move, err));
		}
		TRY(vfm_reduce_scatter(n->node, s, vfm_t1(x, VFM_F32, local * row),
			vfm_t1(x + row * n->node->rank, VFM_F32, row), NULL, err));
		TRY(compute_on_stream(s, down, err));
	}
	return 0;
}

int vfm_nodes_reduce_scatter(
	const struct vfm_comm_nodes *n, struct vfm_stream *s, struct vfm_tensor x, void *scratch, struct vfm_err *err)
{
	int64_t each = vfm_numel(&x) / n->all->size, nodes = n->across->size, all = each * nodes;
	struct nodes_sum down = {.parts = nodes, .n = each, .stride = each, .x = x.data, .dx = VFM_F32, .dy = VFM_BF16};
	float *own = (float *)x.data + each * n->all->rank;
	uint16_t *out = scratch, *in;

	if (n->node->size > 1)
		out += 2 * elements_of_piece(n, each) * n->all->size;
	in = out + all;
	down.y = out;
	TRY(n->node->size > 1 ? sum_within_node(n, s, x.data, each, scratch, out, err)
			      : compute_on_stream(s, down, err));
	TRY(vfm_all_to_all(n->across, s, vfm_t1(out, VFM_BF16, all), vfm_t1(in, VFM_BF16, all), NULL, NULL, err));
	return compute_on_stream(s,
		(struct nodes_sum){.sum = true,
			.parts = nodes,
			.n = each,
			.stride = each,
			.x = in,
			.dx = VFM_BF16,
			.y = own,
			.dy = VFM_F32},
		err);
}

/* y [n] f32 = its sum over the nodes. */
static int all_reduce_across(
	const struct vfm_comm_nodes *c, struct vfm_stream *s, float *y, int64_t n, void *scratch, struct vfm_err *err)
{
	int nodes = c->across->size;
	int64_t each = elements_of_part(n, nodes), all = each * nodes;
	uint16_t *a = scratch, *b = a + all;
	struct nodes_sum down = {.parts = 1, .n = n, .stride = n, .x = y, .dx = VFM_F32, .y = a, .dy = VFM_BF16},
			 sum = {.sum = true,
				 .parts = nodes,
				 .n = each,
				 .stride = each,
				 .x = b,
				 .dx = VFM_BF16,
				 .y = a,
				 .dy = VFM_BF16},
			 up = {.parts = 1, .n = n, .stride = n, .x = b, .dx = VFM_BF16, .y = y, .dy = VFM_F32};

	TRY(compute_on_stream(s, down, err));
	if (all > n)
		TRY(s->dev->t->zero(s, a + n, (size_t)(all - n) * 2, err));
	TRY(vfm_all_to_all(c->across, s, vfm_t1(a, VFM_BF16, all), vfm_t1(b, VFM_BF16, all), NULL, NULL, err));
	TRY(compute_on_stream(s, sum, err));
	TRY(vfm_all_gather(c->across, s, vfm_t1(a, VFM_BF16, each), vfm_t1(b, VFM_BF16, all), NULL, err));
	return compute_on_stream(s, up, err);
}

int vfm_nodes_all_reduce(
	const struct vfm_comm_nodes *n, struct vfm_stream *s, struct vfm_tensor x, void *scratch, struct vfm_err *err)
{
	int local = n->node->size;
	int64_t all = vfm_numel(&x), each = elements_of_part(all, local), at = 0,
		*count = vfm_calloc((size_t)local, sizeof(*count));
	struct vfm_tensor mine;
	int rc = 0;

	for (int r = 0; r < local; r++, at += count[r - 1])
		count[r] = at + each < all ? each : all - at;
	mine = vfm_t1((float *)x.data + (each * n->node->rank < all ? each * n->node->rank : all), VFM_F32,
		count[n->node->rank]);
	if (local > 1)
		TRY_OUT(vfm_reduce_scatter(n->node, s, x, mine, count, err));
	/* the parts of a place are equal on all nodes */
	if (vfm_numel(&mine))
		TRY_OUT(all_reduce_across(n, s, mine.data, vfm_numel(&mine), scratch, err));
	if (local > 1)
		rc = vfm_all_gather(n->node, s, mine, x, count, err);
out:
	free(count);
	return rc;
}
