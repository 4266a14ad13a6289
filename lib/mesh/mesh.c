#include "mesh/mesh.h"

#include <stddef.h>

/* The field of struct vfm_mesh for each group of spec/parallel.h. */
static const struct {
	enum vfm_group g;
	size_t off;
} group_fields[] = {
#define AXIS(a)         VFM_GR_##a, offsetof(struct vfm_mesh, group) + VFM_AX_##a * sizeof(struct vfm_comm *)
#define GROUP(a, field) VFM_GR_##a, offsetof(struct vfm_mesh, field)
	{AXIS(PP)},
	{AXIS(DP)},
	{AXIS(EP)},
	{AXIS(CP)},
	{AXIS(TP)},
	{GROUP(RING, ring)},
	{GROUP(A2A, a2a)},
	{GROUP(SEQ, seq)},
	{GROUP(DATA, data)},
	{GROUP(SHARD, shard)},
	{GROUP(REPLICA, replica)},
	{GROUP(EDATA, edata)},
	{GROUP(ESHARD, eshard)},
	{GROUP(EREPLICA, ereplica)},
	{VFM_GR_TP, offsetof(struct vfm_mesh, tp_param)},
#undef AXIS
#undef GROUP
};

enum { N_GROUP_FIELDS = sizeof(group_fields) / sizeof(group_fields[0]) };

static struct vfm_comm **group_field(struct vfm_mesh *m, int i)
{
	return (struct vfm_comm **)((char *)m + group_fields[i].off);
}

static void init_coordinates(struct vfm_mesh *m, const struct vfm_parallel *p, struct vfm_comm *world)
{
	*m = (struct vfm_mesh){
		.p = *p, .rank = world->rank, .world_size = world->size, .world = world, .save = vfm_comm_self()};
	for (int i = 0; i < N_GROUP_FIELDS; i++)
		*group_field(m, i) = vfm_comm_self();
	vfm_parallel_size(p, m->size);
	vfm_parallel_coord(p, m->rank, m->coord);
}

const struct vfm_mesh *vfm_mesh_one(void)
{
	static struct vfm_mesh one;
	struct vfm_parallel p;

	if (!one.world) {
		vfm_parallel_defaults(&p);
		p.dp = p.shard = p.cp_a2a = 1;
		init_coordinates(&one, &p, vfm_comm_self());
	}
	return &one;
}

/* ---- groups ---- */

static int make_groups(struct vfm_mesh *m, struct vfm_err *err)
{
	for (int i = 0; i < N_GROUP_FIELDS; i++) {
		struct vfm_place at = vfm_parallel_place(&m->p, m->rank, group_fields[i].g);
		const char *name = i == N_GROUP_FIELDS - 1 ? "tp_param" : vfm_group_name(group_fields[i].g);

		/* Groups of one are skipped.  All ranks agree on the sizes. */
		if (at.size > 1)
			TRY(vfm_comm_split(m->world, at.color, at.key, name, group_field(m, i), err));
	}
	/* Checkpoints are in host memory on every device. */
	return vfm_comm_split(vfm_comm_host(m->world), 0, m->rank, "save", &m->save, err);
}

/* Link i connects stage i with the next stage in both directions; the first stage follows the last.  A rank belongs to
 * two links, its own and the previous one, so these two are made in different rounds: even links, odd links, and the
 * last link if the number of links is odd. */
static int make_p2p_comms(struct vfm_mesh *m, struct vfm_err *err)
{
	int pp = m->size[VFM_AX_PP], stage = m->coord[VFM_AX_PP], inner = m->world_size / pp;
	int own = stage, previous = (stage + pp - 1) % pp;

	for (int round = 0; pp > 1 && round < 2 + pp % 2; round++) {
		bool odd_last = pp % 2 != 0;
		int own_round = odd_last && own == pp - 1 ? 2 : own % 2;
		int previous_round = odd_last && previous == pp - 1 ? 2 : previous % 2;
		int link = own_round == round ? own : previous_round == round ? previous : -1;
		bool is_own = own_round == round;
		int color = link < 0 ? -1 : link * inner + m->rank % inner;
		struct vfm_comm *none = NULL, **forward = &none, **backward = &none;

		if (link >= 0) {
			forward = is_own ? &m->fwd_out : &m->fwd_in;
			backward = is_own ? &m->bwd_in : &m->bwd_out;
		}
		TRY(vfm_comm_split_p2p(m->world, color, is_own ? 0 : 1, "forward", forward, err));
		TRY(vfm_comm_split_p2p(m->world, color, is_own ? 1 : 0, "backward", backward, err));
	}
	return 0;
}

static int make_stream(struct vfm_dev *dev, bool wanted, struct vfm_stream **s, struct vfm_err *err)
{
	if (wanted) {
		*s = dev->t->stream_new(dev, true, err);
		if (!*s)
			return VFM_EENV;
	}
	return 0;
}

static int make_event(struct vfm_dev *dev, bool wanted, struct vfm_event **e, struct vfm_err *err)
{
	if (wanted) {
		*e = dev->t->event_new(dev, err);
		if (!*e)
			return VFM_EENV;
	}
	return 0;
}

int vfm_mesh_init(struct vfm_mesh *m, const struct vfm_parallel *p, struct vfm_comm *world, struct vfm_dev *dev,
	struct vfm_err *err)
{
	bool has_reductions, overlap;
	int rc;

	init_coordinates(m, p, world);
	TRY_OUT(make_groups(m, err));
	TRY_OUT(make_p2p_comms(m, err));
	has_reductions = m->shard->size > 1 || m->replica->size > 1 || m->eshard->size > 1 || m->ereplica->size > 1 ||
		m->tp_param->size > 1;
	TRY_OUT(make_stream(dev, has_reductions, &m->param_stream, err));
	TRY_OUT(make_stream(dev, m->ring->size > 1, &m->ring_stream, err));
	TRY_OUT(make_stream(dev, m->size[VFM_AX_PP] > 1, &m->send_stream, err));
	overlap = p->overlap == VFM_OVERLAP_AUTO ? dev->async : p->overlap == VFM_OVERLAP_ON;
	overlap = overlap && (m->size[VFM_AX_TP] > 1 || m->size[VFM_AX_CP] > 1 || m->size[VFM_AX_EP] > 1);
	TRY_OUT(make_stream(dev, overlap, &m->comm_stream, err));
	TRY_OUT(make_event(dev, overlap, &m->comm_ready, err));
	TRY_OUT(make_event(dev, overlap, &m->comm_done, err));
	return 0;
out:
	vfm_mesh_release(m);
	return rc < 0 ? vfm_err_context(err, "cannot form the groups of the mesh") : rc;
}

void vfm_mesh_release(struct vfm_mesh *m)
{
	struct vfm_stream *stream[] = {m->param_stream, m->ring_stream, m->send_stream, m->comm_stream};
	struct vfm_comm *link[] = {m->fwd_out, m->fwd_in, m->bwd_out, m->bwd_in, m->save};

	const struct vfm_dev_table *d = m->comm_stream ? m->comm_stream->dev->t : NULL;

	/* Streams first: their threads may be inside a collective. */
	for (size_t i = 0; i < sizeof(stream) / sizeof(stream[0]); i++)
		if (stream[i])
			stream[i]->dev->t->stream_free(stream[i]);
	if (m->comm_ready)
		d->event_free(m->comm_ready);
	if (m->comm_done)
		d->event_free(m->comm_done);
	for (size_t i = 0; i < sizeof(link) / sizeof(link[0]); i++)
		vfm_comm_free(link[i]);
	for (int i = 0; i < N_GROUP_FIELDS && m->world; i++)
		vfm_comm_free(*group_field(m, i));
	*m = (struct vfm_mesh){0};
}

/* ---- --print-mesh ---- */

static int digits(int64_t n)
{
	int d = 1;

	while (n >= 10) {
		n /= 10;
		d++;
	}
	return d;
}

void vfm_mesh_print(struct vfm_buf *out, const struct vfm_parallel *p, const int *node_of)
{
	static const enum vfm_group shown[] = {VFM_GR_PP, VFM_GR_DP, VFM_GR_CP, VFM_GR_TP, VFM_GR_EP, VFM_GR_RING,
		VFM_GR_A2A, VFM_GR_SHARD, VFM_GR_REPLICA};
	enum { N = sizeof(shown) / sizeof(shown[0]) };
	int64_t world = p->pp * p->dp * p->cp * p->tp;
	int w0 = digits(world - 1) < 4 ? 4 : digits(world - 1);

	vfm_buf_addf(out, "%*s %4s", w0, "rank", "node");
	for (int i = 0; i < N; i++)
		vfm_buf_addf(out, " %7s", vfm_group_name(shown[i]));
	vfm_buf_adds(out, "\n");
	vfm_buf_addf(out, "%*s %4s", w0, "of", "");
	for (int i = 0; i < N; i++)
		vfm_buf_addf(out, " %7d", vfm_parallel_place(p, 0, shown[i]).size);
	vfm_buf_adds(out, "\n");
	for (int r = 0; r < world; r++) {
		vfm_buf_addf(out, "%*d %4d", w0, r, node_of ? node_of[r] : 0);
		for (int i = 0; i < N; i++)
			vfm_buf_addf(out, " %7d", vfm_parallel_place(p, r, shown[i]).key);
		vfm_buf_adds(out, "\n");
	}
}
