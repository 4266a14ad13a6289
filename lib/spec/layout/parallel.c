/* parallel.c - checks degrees against model and world, and computes coordinates and groups. */
#include "spec/layout/parallel.h"

static const char *const cp_mode_names[] = {"ring", "a2a", "hybrid", NULL};
static const char *const overlap_names[] = {"auto", "on", "off", NULL};
static const char *const pp_names[] = {"1f1b", "zb", NULL};

static const char *const grad_reduce_names[] = {"fp32", "bf16_internode", NULL};

#define OFF(f) offsetof(struct vfm_parallel, f)

const struct vfm_key vfm_parallel_keys[] = {
	{"parallel.tp", VFM_KEY_INT, OFF(tp), 1, 1024, NULL, NULL, "tensor parallel degree"},
	{"parallel.cp", VFM_KEY_INT, OFF(cp), 1, 1024, NULL, NULL, "context parallel degree"},
	{"parallel.pp", VFM_KEY_INT, OFF(pp), 1, 1024, NULL, NULL, "pp stages"},
	{"parallel.ep", VFM_KEY_INT, OFF(ep), 1, 1024, NULL, NULL, "expert parallel degree"},
	{"parallel.dp", VFM_KEY_INT, OFF(dp), 0, 1 << 20, NULL, NULL,
		"data parallel degree; 0: what the other degrees leave"},
	{"parallel.vpp", VFM_KEY_INT, OFF(vpp), 1, 1024, NULL, NULL, "chunks of layers a pp stage holds, interleaved"},
	{"parallel.schedule", VFM_KEY_ENUM, OFF(schedule), 0, 0, pp_names, NULL, "order of work of a pipeline"},
	{"parallel.cp_mode", VFM_KEY_ENUM, OFF(cp_mode), 0, 0, cp_mode_names, NULL,
		"how context parallel attention sees all tokens"},
	{"parallel.cp_a2a", VFM_KEY_INT, OFF(cp_a2a), 0, 1024, NULL, NULL,
		"hybrid: ranks of the inner all-to-all; 0: as many as the heads allow"},
	{"parallel.fsdp", VFM_KEY_BOOL, OFF(fsdp), 0, 0, NULL, NULL, "shard parameters, gradients and optimizer"},
	{"parallel.distopt", VFM_KEY_BOOL, OFF(distopt), 0, 0, NULL, NULL, "shard the optimizer"},
	{"parallel.shard", VFM_KEY_INT, OFF(shard), 0, 1 << 20, NULL, NULL,
		"ranks that fsdp and distopt shard over; 0: all of dp x cp"},
	{"parallel.overlap", VFM_KEY_ENUM, OFF(overlap), 0, 0, overlap_names, NULL,
		"whether collectives within layers overlap with computing"},
	{"parallel.bucket_mib", VFM_KEY_INT, OFF(bucket_mib), 0, 1 << 20, NULL, NULL,
		"size of the buckets in which gradients are reduced"},
	{"parallel.grad_reduce", VFM_KEY_ENUM, OFF(grad_reduce), 0, 0, grad_reduce_names, NULL,
		"how gradients are summed between nodes"},
};
const int vfm_parallel_n_keys = sizeof(vfm_parallel_keys) / sizeof(vfm_parallel_keys[0]);

void vfm_parallel_defaults(struct vfm_parallel *p)
{
	*p = (struct vfm_parallel){.tp = 1, .cp = 1, .pp = 1, .ep = 1, .vpp = 1, .bucket_mib = 32};
}

/* ---- constraints ---- */

typedef long long ll;

/* A value that a degree must divide; 0 is divisible by any degree. */
struct multiple {
	const char *what;
	int64_t of;
};

static const struct multiple *misfit(const struct multiple *m, int n, int64_t degree)
{
	for (int i = 0; i < n; i++)
		if (m[i].of % degree)
			return &m[i];
	return NULL;
}

/* Appends "1, 2, 3, 6": the degrees that divide all of m. */
static void fits(struct vfm_buf *b, const struct multiple *m, int n)
{
	int64_t most = 0;

	for (int i = 0; i < n; i++)
		if (m[i].of && (!most || m[i].of < most))
			most = m[i].of;
	for (int64_t d = 1; d <= most; d++)
		if (!misfit(m, n, d))
			vfm_buf_addf(b, "%s%lld", b->len ? ", " : "", (ll)d);
}

static int check_divides(const char *key, int64_t degree, const struct multiple *m, int n, struct vfm_err *err)
{
	const struct multiple *bad = misfit(m, n, degree);
	struct vfm_buf b = {0};

	if (!bad)
		return 0;
	fits(&b, m, n);
	vfm_fail(err, VFM_EUSAGE, "%s: %lld does not divide %s %lld; %s would fit", key, (ll)degree, bad->what,
		(ll)bad->of, b.data);
	vfm_buf_release(&b);
	return VFM_EUSAGE;
}

static int check_range(const struct vfm_parallel *p, struct vfm_err *err)
{
	for (int i = 0; i < vfm_parallel_n_keys; i++)
		TRY(vfm_key_check_value(p, &vfm_parallel_keys[i], err));
	return 0;
}

static int check_world(struct vfm_parallel *p, int world, struct vfm_err *err)
{
	int64_t model = p->tp * p->cp, rest;

	/* Each is at most 1024. */
	if (model <= world)
		model *= p->pp;
	if (model > world || world % model)
		return vfm_fail(err, VFM_EUSAGE,
			"parallel: tp %lld x cp %lld x pp %lld does not divide the number of ranks, %d (-n or srun)",
			(ll)p->tp, (ll)p->cp, (ll)p->pp, world);
	rest = world / model;
	if (p->dp && p->dp != rest)
		return vfm_fail(err, VFM_EUSAGE,
			"parallel.dp: tp %lld x cp %lld x pp %lld x dp %lld is not the number of ranks, %d; dp %lld "
			"(or 0) would fit",
			(ll)p->tp, (ll)p->cp, (ll)p->pp, (ll)p->dp, world, (ll)rest);
	p->dp = rest;
	return 0;
}

static int check_cp(struct vfm_parallel *p, const struct vfm_model_spec *m, struct vfm_err *err)
{
	int64_t kv = m->kv_heads ? m->kv_heads : m->heads;
	struct multiple of[] = {{"the heads of a tp rank,", m->heads / p->tp},
		{"the key and value heads of a tp rank,", kv / p->tp}, {"parallel.cp", p->cp}};

	switch (p->cp_mode) {
	case VFM_CP_RING:
		p->cp_a2a = 1;
		return 0;
	case VFM_CP_A2A:
		p->cp_a2a = p->cp;
		return check_divides("parallel.cp (cp_mode a2a)", p->cp, of, 2, err);
	default:
		if (!p->cp_a2a)
			for (p->cp_a2a = p->cp; misfit(of, 3, p->cp_a2a); p->cp_a2a--)
				;
		return check_divides("parallel.cp_a2a", p->cp_a2a, of, 3, err);
	}
}

static int check_pp(const struct vfm_parallel *p, const struct vfm_model_spec *m, struct vfm_err *err)
{
	if (p->pp * p->vpp > m->layers)
		return vfm_fail(err, VFM_EUSAGE,
			"parallel.pp: pp %lld x vpp %lld is more than model.layers %lld; pp %lld or less would fit",
			(ll)p->pp, (ll)p->vpp, (ll)m->layers, (ll)(p->vpp > m->layers ? 0 : m->layers / p->vpp));
	if (p->vpp > 1 && p->pp == 1)
		return vfm_fail(err, VFM_EUSAGE, "parallel.vpp: %lld needs pp > 1; 1 would fit", (ll)p->vpp);
	return 0;
}

static int check_ep(const struct vfm_parallel *p, const struct vfm_model_spec *m, struct vfm_err *err)
{
	struct multiple of[] = {{"model.experts", vfm_model_has_experts(m) ? m->experts : 1},
		{"dp x cp x tp =", p->dp * p->cp * p->tp}};

	if (p->ep > 1 && !vfm_model_has_experts(m))
		return vfm_fail(err, VFM_EUSAGE, "parallel.ep: %lld, but model.arch %s has no experts; 1 would fit",
			(ll)p->ep, m->arch);
	return check_divides("parallel.ep", p->ep, of, 2, err);
}

int vfm_parallel_check(struct vfm_parallel *p, const struct vfm_model_spec *m, int world, struct vfm_err *err)
{
	int64_t ffn = m->ffn ? m->ffn : 4 * m->hidden;
	struct multiple tp[] = {{"model.heads", m->heads}, {"model.kv_heads", m->kv_heads},
		{"model.ffn", vfm_model_has_experts(m) ? 0 : ffn},
		{"model.shared_experts x model.expert_ffn =",
			vfm_model_has_experts(m) ? m->shared_experts * m->expert_ffn : 0}};
	struct multiple shard[1];

	TRY(check_range(p, err));
	TRY(check_divides("parallel.tp", p->tp, tp, 4, err));
	TRY(check_world(p, world, err));
	TRY(check_cp(p, m, err));
	TRY(check_pp(p, m, err));
	TRY(check_ep(p, m, err));
	if (p->fsdp && p->distopt)
		return vfm_fail(err, VFM_EUSAGE,
			"parallel.distopt: fsdp shards the optimizer state already; set one of the two");
	if (!p->shard)
		p->shard = p->dp * p->cp;
	shard[0] = (struct multiple){"dp x cp =", p->dp * p->cp};
	return check_divides("parallel.shard", p->shard, shard, 1, err);
}

/* ---- coordinates and groups ---- */

void vfm_parallel_text(const struct vfm_parallel *p, struct vfm_buf *out)
{
	static const char *const modes[] = {"ring", "a2a", "hybrid"};
	const struct {
		const char *name;
		int64_t n;
	} degree[] = {{"dp", p->dp}, {"tp", p->tp}, {"cp", p->cp}, {"pp", p->pp}, {"vpp", p->vpp}, {"ep", p->ep}};

	for (size_t i = 0; i < sizeof(degree) / sizeof(*degree); i++)
		if (degree[i].n > 1)
			vfm_buf_addf(out, "%s%s=%lld", out->len ? " " : "", degree[i].name, (long long)degree[i].n);
	if (p->cp > 1)
		vfm_buf_addf(out, " %s", modes[p->cp_mode]);
	if (p->pp > 1 && p->schedule == VFM_PP_ZB)
		vfm_buf_adds(out, " zb");
	if (p->fsdp || p->distopt)
		vfm_buf_adds(out, p->fsdp ? " fsdp" : " distopt");
}

void vfm_parallel_coord(const struct vfm_parallel *p, int rank, int coord[VFM_AXES])
{
	coord[VFM_AX_TP] = (int)(rank % p->tp);
	coord[VFM_AX_CP] = (int)(rank / p->tp % p->cp);
	coord[VFM_AX_DP] = (int)(rank / (p->tp * p->cp) % p->dp);
	coord[VFM_AX_PP] = (int)(rank / (p->tp * p->cp * p->dp));
	coord[VFM_AX_EP] = (int)(rank % (p->tp * p->cp * p->dp) % p->ep);
}

void vfm_parallel_size(const struct vfm_parallel *p, int size[VFM_AXES])
{
	size[VFM_AX_PP] = (int)p->pp;
	size[VFM_AX_DP] = (int)p->dp;
	size[VFM_AX_EP] = (int)p->ep;
	size[VFM_AX_CP] = (int)p->cp;
	size[VFM_AX_TP] = (int)p->tp;
}

const char *vfm_group_name(enum vfm_group g)
{
	static const char *const name[] = {
		[VFM_GR_PP] = "pp",
		[VFM_GR_DP] = "dp",
		[VFM_GR_EP] = "ep",
		[VFM_GR_CP] = "cp",
		[VFM_GR_TP] = "tp",
		[VFM_GR_RING] = "ring",
		[VFM_GR_A2A] = "a2a",
		[VFM_GR_SEQ] = "seq",
		[VFM_GR_DATA] = "data",
		[VFM_GR_SHARD] = "shard",
		[VFM_GR_REPLICA] = "replica",
		[VFM_GR_EDATA] = "edata",
		[VFM_GR_ESHARD] = "eshard",
		[VFM_GR_EREPLICA] = "ereplica",
	};

	return name[g];
}

/* Splits the group g into subgroups of `inner` consecutive ranks.  Returns the subgroup of the rank g.key. */
static struct vfm_place neighbours(struct vfm_place g, int64_t inner)
{
	return (struct vfm_place){(int)inner, (int)(g.color * (g.size / inner) + g.key / inner), (int)(g.key % inner)};
}

/* Returns the group of the ranks with the same position in each of these subgroups. */
static struct vfm_place counterparts(struct vfm_place g, int64_t inner)
{
	return (struct vfm_place){(int)(g.size / inner), (int)(g.color * inner + g.key % inner), (int)(g.key / inner)};
}

static int64_t gcd(int64_t a, int64_t b)
{
	return b ? gcd(b, a % b) : a;
}

struct vfm_place vfm_parallel_place(const struct vfm_parallel *p, int rank, enum vfm_group g)
{
	int64_t n_ranks_of_stage = p->dp * p->cp * p->tp, n_edata = n_ranks_of_stage / p->ep;
	bool sharded = p->fsdp || p->distopt, all = p->shard == p->dp * p->cp;
	int c[VFM_AXES];
	struct vfm_place cp, data, edata;

	vfm_parallel_coord(p, rank, c);
	cp = (struct vfm_place){(int)p->cp, (int)(rank / (p->tp * p->cp) * p->tp + c[VFM_AX_TP]), c[VFM_AX_CP]};
	data = (struct vfm_place){(int)(p->dp * p->cp), (int)(c[VFM_AX_PP] * p->tp + c[VFM_AX_TP]),
		(int)(c[VFM_AX_DP] * p->cp + c[VFM_AX_CP])};
	edata = (struct vfm_place){
		(int)n_edata, (int)(c[VFM_AX_PP] * p->ep + c[VFM_AX_EP]), (int)(rank % n_ranks_of_stage / p->ep)};
	switch (g) {
	case VFM_GR_PP:
		return (struct vfm_place){(int)p->pp, (int)(rank % n_ranks_of_stage), c[VFM_AX_PP]};
	case VFM_GR_DP:
		return counterparts(data, p->cp);
	case VFM_GR_EP:
		return (struct vfm_place){(int)p->ep, (int)(rank / p->ep), c[VFM_AX_EP]};
	case VFM_GR_CP:
		return cp;
	case VFM_GR_TP:
		return (struct vfm_place){(int)p->tp, (int)(rank / p->tp), c[VFM_AX_TP]};
	case VFM_GR_RING:
		return counterparts(cp, p->cp_a2a);
	case VFM_GR_A2A:
		return neighbours(cp, p->cp_a2a);
	case VFM_GR_SEQ:
		return (struct vfm_place){
			(int)(p->cp * p->tp), (int)(rank / (p->cp * p->tp)), (int)(rank % (p->cp * p->tp))};
	case VFM_GR_DATA:
		return data;
	case VFM_GR_SHARD:
		return neighbours(data, sharded ? p->shard : 1);
	case VFM_GR_REPLICA:
		return counterparts(data, sharded ? p->shard : 1);
	case VFM_GR_EDATA:
		return edata;
	case VFM_GR_ESHARD:
		return neighbours(edata, !sharded ? 1 : all ? n_edata : gcd(p->shard, n_edata));
	case VFM_GR_EREPLICA:
		return counterparts(edata, !sharded ? 1 : all ? n_edata : gcd(p->shard, n_edata));
	default:
		return (struct vfm_place){1, rank, 0};
	}
}
