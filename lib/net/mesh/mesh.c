/* mesh.c - splits the world into groups and views, and makes their communicators and streams. */
#include "net/mesh/mesh.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Streams of groups.  Groups of one kind with the same ranks in the same order share a communicator, since their
 * collectives never overlap.  Those of LAYERS run on comm_stream or the compute stream, which wait for one another. */
enum group_use { LAYERS, RINGS, SUMS, GATHERS };

/* The field of struct vfm_mesh for each group of spec/layout/parallel.h that communicates. */
static const struct {
	const char *name;
	enum vfm_group g;
	enum group_use use;
	size_t off;
} group_fields[] = {
#define AXIS(name, a)                                                                                                  \
	name, VFM_GR_##a, LAYERS, offsetof(struct vfm_mesh, group) + VFM_AX_##a * sizeof(struct vfm_comm *)
#define GROUP(g, use, field) #field, VFM_GR_##g, use, offsetof(struct vfm_mesh, field)
	{AXIS("pp", PP)},
	{AXIS("ep", EP)},
	{AXIS("cp", CP)},
	{AXIS("tp", TP)},
	{GROUP(RING, RINGS, ring)},
	{GROUP(A2A, LAYERS, a2a)},
	{GROUP(SEQ, LAYERS, seq)},
	{GROUP(SHARD, SUMS, shard)},
	{GROUP(REPLICA, SUMS, replica)},
	{GROUP(ESHARD, SUMS, eshard)},
	{GROUP(EREPLICA, SUMS, ereplica)},
	{GROUP(TP, SUMS, tp_param)},
	{GROUP(SHARD, GATHERS, gather)},
	{GROUP(ESHARD, GATHERS, egather)},
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
	*m = (struct vfm_mesh){.p = *p,
		.rank = world->rank,
		.world_size = world->size,
		.world = world,
		.save = vfm_comm_self(),
		.readers = vfm_comm_self()};
	m->group[VFM_AX_DP] = vfm_comm_self();
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

/* Returns whether all groups of two fields have the same ranks in the same order. */
static bool have_equal_members(const struct vfm_mesh *m, int i, int k)
{
	int *first[2], equal = 1;

	for (int f = 0; f < 2; f++) { /* the first rank of each group, by color */
		first[f] = vfm_calloc((size_t)m->world_size, sizeof(int));
		for (int r = 0; r < m->world_size; r++) {
			struct vfm_place at = vfm_parallel_place(&m->p, r, group_fields[f ? k : i].g);

			if (at.key == 0)
				first[f][at.color] = r;
		}
	}
	for (int r = 0; equal && r < m->world_size; r++) {
		struct vfm_place a = vfm_parallel_place(&m->p, r, group_fields[i].g),
				 b = vfm_parallel_place(&m->p, r, group_fields[k].g);

		equal = a.size == b.size && a.key == b.key && first[0][a.color] == first[1][b.color];
	}
	free(first[0]);
	free(first[1]);
	return equal;
}

/* Returns the field before i whose communicator field i shares, or i. */
static int shared_group_field(const struct vfm_mesh *m, int i)
{
	for (int k = 0; k < i; k++) {
		enum group_use a = group_fields[i].use, b = group_fields[k].use;

		/* Without fsdp, weights are gathered after the sums of a step and not during them. */
		if ((a == b || (a == GATHERS && b == SUMS && !m->p.fsdp)) && have_equal_members(m, i, k))
			return k;
	}
	return i;
}

/* "shard+eshard": the groups that share a communicator, as far as they fit in its name. */
static void name_shared_group(const struct vfm_mesh *m, int i, char name[16])
{
	snprintf(name, 16, "%s", group_fields[i].name);
	for (int k = i + 1; k < N_GROUP_FIELDS; k++)
		if (shared_group_field(m, k) == i && strlen(name) + 1 + strlen(group_fields[k].name) < 16) {
			strcat(name, "+");
			strcat(name, group_fields[k].name);
		}
}

static struct vfm_comm_place place_reader(const void *ctx, int rank)
{
	const struct vfm_mesh *m = ctx;
	int coord[VFM_AXES];

	vfm_parallel_coord(&m->p, rank, coord);
	return (struct vfm_comm_place){vfm_comm_node(m->world, rank) * m->size[VFM_AX_DP] + coord[VFM_AX_DP], rank};
}

static int make_readers(struct vfm_mesh *m, struct vfm_err *err)
{
	if (m->size[VFM_AX_DP] == m->world_size)
		return 0;
	return vfm_comm_split_by(
		vfm_comm_host(m->world), (struct vfm_comm_places){place_reader, m}, false, "readers", &m->readers, err);
}

struct field_group {
	const struct vfm_mesh *m;
	enum vfm_group g;
};

static struct vfm_comm_place place_in_field(const void *ctx, int rank)
{
	const struct field_group *f = ctx;
	struct vfm_place at = vfm_parallel_place(&f->m->p, rank, f->g);

	return (struct vfm_comm_place){at.color, at.key};
}

static struct vfm_comm_place place_saver(const void *ctx, int rank)
{
	(void)ctx;
	return (struct vfm_comm_place){0, rank};
}

/* Makes the groups of one field, or takes over those of an earlier one.  suffix: of the name. */
static int make_group(struct vfm_mesh *m, int i, const char *suffix, struct vfm_err *err)
{
	struct vfm_place at = vfm_parallel_place(&m->p, m->rank, group_fields[i].g);
	int k = at.size > 1 ? shared_group_field(m, i) : i;
	char name[16];

	if (at.size == 1) /* skipped; all ranks agree on the sizes */
		return 0;
	if (k < i) {
		*group_field(m, i) = *group_field(m, k);
		return 0;
	}
	name_shared_group(m, i, name);
	if (strlen(name) + strlen(suffix) < sizeof(name))
		strcat(name, suffix);
	return vfm_comm_split_by(m->world,
		(struct vfm_comm_places){place_in_field, &(struct field_group){m, group_fields[i].g}}, false, name,
		group_field(m, i), err);
}

static int make_groups(struct vfm_mesh *m, struct vfm_err *err)
{
	if (m->size[VFM_AX_DP] > 1)
		m->group[VFM_AX_DP] = NULL;
	for (int i = 0; i < N_GROUP_FIELDS; i++)
		TRY(make_group(m, i, "", err));
	/* Checkpoints and packs are in host memory on every device. */
	TRY(vfm_comm_split_by(
		vfm_comm_host(m->world), (struct vfm_comm_places){place_saver, NULL}, false, "save", &m->save, err));
	return make_readers(m, err);
}

static int make_nodes(struct vfm_mesh *m, struct vfm_err *err)
{
	struct vfm_comm *all[] = {m->shard, m->replica, m->eshard, m->ereplica};

	for (size_t i = 0; m->p.grad_reduce == VFM_GRAD_REDUCE_BF16_INTERNODE && i < sizeof(all) / sizeof(all[0]);
		i++) {
		if (all[i]->size == 1 || vfm_mesh_nodes(m, all[i]))
			continue;
		TRY(vfm_comm_nodes_new(all[i], &m->nodes[m->n_nodes], err));
		m->n_nodes += m->nodes[m->n_nodes].all != NULL;
	}
	return 0;
}

const struct vfm_comm_nodes *vfm_mesh_nodes(const struct vfm_mesh *m, const struct vfm_comm *c)
{
	for (int i = 0; i < m->n_nodes; i++)
		if (m->nodes[i].all == c)
			return &m->nodes[i];
	return NULL;
}

/* Link i connects pp stage i with the next pp stage in both directions; the first pp stage follows the last.  A rank
 * belongs to two links, its own and the previous one, so these two are made in different rounds: even links, odd links,
 * and the last link if the number of links is odd. */
struct link_round {
	const struct vfm_mesh *m;
	int round;
	bool backward; /* the later pp stage is rank 0 */
};

/* Returns the link of a rank in a round, or -1; *is_own: that to the next pp stage. */
static int link_of(const struct link_round *l, int rank, bool *is_own)
{
	int pp = l->m->size[VFM_AX_PP], coord[VFM_AXES], own, previous;
	bool odd_last = pp % 2 != 0;

	vfm_parallel_coord(&l->m->p, rank, coord);
	own = coord[VFM_AX_PP];
	previous = (own + pp - 1) % pp;
	*is_own = (odd_last && own == pp - 1 ? 2 : own % 2) == l->round;
	return *is_own ? own : (odd_last && previous == pp - 1 ? 2 : previous % 2) == l->round ? previous : -1;
}

static struct vfm_comm_place place_on_link(const void *ctx, int rank)
{
	const struct link_round *l = ctx;
	int inner = l->m->world_size / l->m->size[VFM_AX_PP], link;
	bool is_own;

	link = link_of(l, rank, &is_own);
	return (struct vfm_comm_place){link < 0 ? -1 : link * inner + rank % inner, is_own != l->backward ? 0 : 1};
}

static int make_p2p_comms(struct vfm_mesh *m, struct vfm_err *err)
{
	int pp = m->size[VFM_AX_PP];

	for (int round = 0; pp > 1 && round < 2 + pp % 2; round++) {
		struct link_round l = {m, round, false};
		struct vfm_comm *none = NULL, **forward = &none, **backward = &none;
		bool is_own;

		if (link_of(&l, m->rank, &is_own) >= 0) {
			forward = is_own ? &m->fwd_out : &m->fwd_in;
			backward = is_own ? &m->bwd_in : &m->bwd_out;
		}
		TRY(vfm_comm_split_by(
			m->world, (struct vfm_comm_places){place_on_link, &l}, true, "forward", forward, err));
		l.backward = true;
		TRY(vfm_comm_split_by(
			m->world, (struct vfm_comm_places){place_on_link, &l}, true, "backward", backward, err));
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
	TRY_OUT(make_nodes(m, err));
	TRY_OUT(make_p2p_comms(m, err));
	has_reductions = m->shard->size > 1 || m->replica->size > 1 || m->eshard->size > 1 || m->ereplica->size > 1 ||
		m->tp_param->size > 1;
	TRY_OUT(make_stream(dev, has_reductions, &m->param_stream, err));
	TRY_OUT(make_stream(dev, p->fsdp && (m->shard->size > 1 || m->eshard->size > 1), &m->gather_stream, err));
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

/* Frees the communicators of a mesh, or those that a view does not borrow from its mesh. */
static void free_groups(struct vfm_mesh *m, struct vfm_mesh *lender)
{
	for (int i = 0; i < N_GROUP_FIELDS && m->world; i++) {
		bool shared = false;

		for (int k = 0; k < i; k++)
			shared |= *group_field(m, k) == *group_field(m, i);
		for (int k = 0; lender && k < N_GROUP_FIELDS; k++)
			shared |= *group_field(lender, k) == *group_field(m, i);
		if (!shared)
			vfm_comm_free(*group_field(m, i));
	}
}

/* ---- views ---- */

static int64_t gcd_of(int64_t a, int64_t b)
{
	return b ? gcd_of(b, a % b) : a;
}

static bool depends_on_cp(enum vfm_group g)
{
	return g == VFM_GR_CP || g == VFM_GR_RING || g == VFM_GR_A2A || g == VFM_GR_SEQ;
}

static int make_view(struct vfm_mesh *v, const struct vfm_mesh *m, int cp, struct vfm_err *err)
{
	char suffix[16];

	*v = *m;
	memset(v->view, 0, sizeof(v->view));
	v->p.cp = cp;
	v->p.dp = m->p.dp * m->p.cp / cp;
	v->p.cp_a2a = gcd_of(m->p.cp_a2a, cp);
	vfm_parallel_size(&v->p, v->size);
	vfm_parallel_coord(&v->p, v->rank, v->coord);
	v->group[VFM_AX_DP] = v->size[VFM_AX_DP] > 1 ? NULL : vfm_comm_self();
	snprintf(suffix, sizeof(suffix), "/%d", cp);
	for (int i = 0; i < N_GROUP_FIELDS; i++)
		if (depends_on_cp(group_fields[i].g))
			*group_field(v, i) = vfm_comm_self();
	for (int i = 0; i < N_GROUP_FIELDS; i++)
		if (depends_on_cp(group_fields[i].g))
			TRY(make_group(v, i, suffix, err));
	return 0;
}

int vfm_mesh_add_views(struct vfm_mesh *m, int max_cp, struct vfm_err *err)
{
	for (int i = 0; i < VFM_MESH_VIEWS; i++) {
		int cp = 1 << i;

		if (cp > max_cp || cp >= m->size[VFM_AX_CP] || m->size[VFM_AX_CP] % cp || m->view[i])
			continue;
		m->view[i] = vfm_calloc(1, sizeof(*m->view[i]));
		if (make_view(m->view[i], m, cp, err) < 0)
			return vfm_err_context(err, "cannot form groups of %d cp ranks", cp);
	}
	return 0;
}

const struct vfm_mesh *vfm_mesh_for(const struct vfm_mesh *m, int cp)
{
	if (cp == 0 || cp >= m->size[VFM_AX_CP])
		return m;
	return m->view[31 - __builtin_clz((unsigned)cp)];
}

static void free_views(struct vfm_mesh *m)
{
	for (int i = 0; i < VFM_MESH_VIEWS; i++) {
		if (m->view[i])
			free_groups(m->view[i], m);
		free(m->view[i]);
	}
}

void vfm_mesh_release(struct vfm_mesh *m)
{
	struct vfm_stream *stream[] = {
		m->param_stream, m->gather_stream, m->ring_stream, m->send_stream, m->comm_stream};
	struct vfm_comm *link[] = {m->fwd_out, m->fwd_in, m->bwd_out, m->bwd_in, m->save, m->readers};

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
	for (size_t i = 0; i < sizeof(m->nodes) / sizeof(m->nodes[0]); i++)
		vfm_comm_nodes_release(&m->nodes[i]);
	free_views(m);
	free_groups(m, NULL);
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
