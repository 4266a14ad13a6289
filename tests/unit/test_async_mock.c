/* Runs on the mock of an asynchronous device (async_mock.h) give the same bits as on the CPU.  Therefore the host never
 * reads a result, frees memory or reuses host memory before the device is done with it.  The reference run has no
 * communication stream; the run on the mock may have one. */
#include <signal.h>

#include "base/log.h"
#include "base/par.h"
#include "ckpt/ckpt.h"
#include "data/plan/pack.h"
#include "io/json.h"
#include "dataset.h"
#include "device/dev/upload.h"
#include "async_mock.h"
#include "ranks.h"
#include "net/diffusion/sampler.h"
#include "train/run/run.h"
#include "train/step/idle.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { PACKS = 4, SAMPLES = 3, STEPS = 3 };

/* ---- steps ---- */

static const struct vfm_synthetic samples[PACKS][SAMPLES] = {
	{{{2, 4, 4}, 7, 11}, {{1, 3, 5}, 2, 12}, {{3, 2, 2}, 5, 13}},
	{{{1, 4, 6}, 1, 21}, {{4, 2, 3}, 0, 22}, {{1, 1, 1}, 9, 23}},
	{{{1, 1, 1}, 3, 31}, {{1, 1, 2}, 0, 32}, {{1, 5, 5}, 2, 33}},
	{{{3, 5, 3}, 4, 41}, {{1, 2, 2}, 6, 42}, {{2, 3, 3}, 1, 43}},
};

#define SMALL "model.layers=3 model.hidden=32 model.heads=4 model.channels=4 model.text_dim=8 "
#define MOE   SMALL "model.arch=moe model.kv_heads=2 model.experts=4 model.expert_ffn=16 model.moe_capacity=2 "
static const char dit[] = SMALL "model.pooled_text=true model.pos=both model.adaln_lora=4",
		  moviegen[] = SMALL
	"model.arch=moviegen model.pos=learned model.pos_max=[8,8,8] diffusion.kind=flow model.ffn=48",
		  stdit[] = SMALL "model.arch=stdit", moe[] = MOE "model.shared_experts=1",
		  fp8[] = SMALL "train.dtype=bf16 train.fp8=delayed train.fp8_history=2 train.recompute=full",
		  lean[] = SMALL "train.master=split train.moments=bf16 train.offload=both train.recompute=selective",
		  half[] = SMALL "train.residual=bf16 model.pos=both ",
		  half_moviegen[] = SMALL "model.arch=moviegen model.pos=learned model.pos_max=[8,8,8] model.ffn=48 "
					  "train.residual=bf16 train.offload=activations train.recompute=light",
		  light[] = SMALL "train.recompute=light", full[] = SMALL "model.arch=stdit train.recompute=full",
		  fp8_light[] = SMALL "train.fp8=current train.recompute=light",
		  base8[] = SMALL "lora.rank=4 train.frozen_dtype=fp8",
		  base4[] = SMALL "model.hidden=64 lora.rank=4 train.frozen_dtype=nf4",
		  away4[] = SMALL "model.hidden=64 lora.rank=4 train.frozen_dtype=nf4 train.offload_weights=2",
		  mapped_int8[] = SMALL "model.hidden=64 lora.rank=4 train.frozen_dtype=int8 train.offload_weights=3 "
					"train.host_gib=1e-5 train.recompute=full",
		  away[] = SMALL "lora.rank=4 train.offload_weights=2 train.recompute=light",
		  away8[] =
			  SMALL "lora.rank=4 train.offload_weights=3 train.frozen_dtype=fp8 train.offload=activations "
				"train.recompute=full",
		  /* host memory is short: the weights of one block are pinned, or none */
	mapped[] = SMALL "lora.rank=4 train.offload_weights=3 train.host_gib=1e-5 train.recompute=light",
		  token[] = MOE "model.shared_experts=0 model.moe_router=token_choice model.moe_aux=0.5";

static enum mock_lost_wait lost_wait; /* of the process forked next */

struct outcome {
	struct vfm_step_stats s[STEPS];
	float *state; /* master weights, moments, EMA; from alloc_host */
	struct vfm_dev *dev;
	size_t n;
	int64_t graphs;
};

static void configure(struct vfm_config *c, const char *sets, enum vfm_dtype dt, const struct vfm_parallel *p)
{
	char *text = vfm_strdup(sets), *at = text, *word;

	vfm_config_defaults(c);
	while ((word = strsep(&at, " ")))
		if (*word)
			OK(vfm_config_set(c, word, &err));
	free(text);
	c->train.ema_decay = 0.9;
	c->train.overlap_update = VFM_OVERLAP_ON; /* on the mock; the CPU runs one op at a time */
	c->train.dtype = dt;
	OK(vfm_config_check(c, &err));
	if (p)
		c->parallel = *p;
}

static void copy_state(struct outcome *o, struct vfm_trainer *tr)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_optim *op = vfm_trainer_optim(tr);
	const struct vfm_array *part[] = {NULL, &op->m, &op->v, &op->ema};
	struct vfm_dev *d = ps->stream->dev;
	float *at;

	o->n = 4 * (size_t)ps->n_own;
	o->dev = d;
	o->state = at = d->t->alloc_host(d, o->n * sizeof(float) + 64, "the state", &err);
	memset(o->state, 0, o->n * sizeof(float));
	for (size_t i = 0; i < 4; i++)
		for (size_t k = 0; k < ps->n; k++) {
			struct vfm_owned own = vfm_param_owned(ps, ps->p[k]);

			if (ps->p[k]->frozen)
				continue;
			OK(vfm_param_get(ps, part[i], ps->p[k], at, &err));
			at += own.b - own.a;
		}
	OK(d->t->stream_sync(ps->stream, &err));
}

/* Of two networks: exchanges after each step, and one more before the state is read.  0: one network. */
static int exchanges;

static void exchange(struct vfm_idle *idle, int64_t n)
{
	for (int64_t i = 0; i < n && exchanges; i++)
		OK(vfm_idle_exchange(idle, &err));
}

/* Reads the statistics of each step after enqueueing the next one; of two networks before that. */
static void train(struct outcome *o, const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_dev *d)
{
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	int dp = mesh->size[VFM_AX_DP], mine = PACKS / dp;
	struct vfm_pack b[PACKS];
	struct vfm_pack_array packs = {b, mine, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_idle idle = {0};
	struct vfm_trainer *tr;
	int64_t tokens = 0;

	for (int k = 0; k < PACKS; k++)
		for (int i = 0; i < SAMPLES; i++)
			tokens += samples[k][i].grid[0] * samples[k][i].grid[1] * samples[k][i].grid[2];
	for (int k = 0; k < mine; k++) {
		OK(vfm_synthetic_pack(&b[k], samples[k * dp + mesh->coord[VFM_AX_DP]], SAMPLES, &c->model, 5, &err));
		b[k].step_tokens = tokens;
	}
	tr = vfm_trainer_new(c, mesh, s, &err);
	OK(tr ? 0 : -1);
	mock.faulty = vfm_trainer_params(tr)->fetch_stream;
	OK(vfm_params_fill_dense(vfm_trainer_params(tr), 3, &err));
	if (exchanges)
		OK(vfm_idle_new(&idle, tr, exchanges > 2, &err));
	for (int k = 0; k <= STEPS; k++) {
		if (k < STEPS)
			OK(vfm_trainer_step(tr, k, mine, &source, 1e-3, &err));
		if (k > 0 && !exchanges)
			OK(vfm_trainer_stats(tr, &o->s[k - 1], &err));
		else if (k < STEPS && exchanges)
			OK(vfm_trainer_stats(tr, &o->s[k], &err));
		exchange(&idle, k < STEPS);
	}
	exchange(&idle, exchanges % 2);
	copy_state(o, tr);
	vfm_idle_release(&idle);
	o->graphs = vfm_trainer_graphs(tr);
	vfm_trainer_free(tr);
	MUST(d->mem_now == 0, "%lld bytes of device memory leaked", (long long)d->mem_now);
	for (int k = 0; k < mine; k++)
		vfm_pack_release(&b[k]);
	d->t->stream_free(s);
}

static void compare(const char *what, struct outcome *a, struct outcome *b)
{
	for (int k = 0; k < STEPS; k++)
		MUST(a->s[k].loss == b->s[k].loss && a->s[k].grad_norm == b->s[k].grad_norm &&
				a->s[k].tokens == b->s[k].tokens,
			"%s: step %d: loss %.9g, norm %.9g instead of %.9g, %.9g", what, k, b->s[k].loss,
			b->s[k].grad_norm, a->s[k].loss, a->s[k].grad_norm);
	MUST(a->n == b->n && !memcmp(a->state, b->state, a->n * sizeof(float)), "%s: the weights differ", what);
	a->dev->t->free_host(a->dev, a->state, a->n * sizeof(float) + 64);
	b->dev->t->free_host(b->dev, b->state, b->n * sizeof(float) + 64);
	a->dev->t->dev_free(a->dev);
	b->dev->t->dev_free(b->dev);
}

static void train_in(struct outcome *o, const struct vfm_config *c, struct vfm_comm *world, struct vfm_dev *d)
{
	struct vfm_mesh mesh;

	OK(vfm_mesh_init(&mesh, &c->parallel, world, d, &err));
	MUST(!mesh.comm_stream ==
			!(c->parallel.overlap != VFM_OVERLAP_OFF &&
				c->parallel.tp * c->parallel.cp * c->parallel.ep > 1),
		"communication stream without overlap, or overlap without it");
	train(o, c, &mesh, d);
	vfm_mesh_release(&mesh);
}

/* Runs in a separate process, because a violation aborts it. */
static int one_rank(struct vfm_launch *l, const void *arg)
{
	const struct layout *lay = arg;
	struct outcome a = {0}, b = {0};
	struct vfm_config c;

	(void)l;
	configure(&c, lay->name, lay->dtype, NULL);
	c.train.recompute = lay->p.vpp;
	c.parallel.bucket_mib = 0; /* updates of more than one range of units */
	OK(vfm_parallel_check(&c.parallel, &c.model, 1, &err));
	train_in(&a, &c, vfm_comm_self(), vfm_cpu_open(&err));
	train_in(&b, &c, vfm_comm_self(), mock_open(true, &err));
	for (int k = 0; k < STEPS; k++)
		MUST(b.s[k].rank.comm_s == 0 && b.s[k].rank.bubble_s == 0 &&
				(b.s[k].rank.copy_s > 0) == !!strstr(lay->name, "train.offload"),
			"step %d: %g s of communication stalls, %g s of copy stalls", k, b.s[k].rank.comm_s,
			b.s[k].rank.copy_s);
	compare(lay->name, &a, &b);
	MUST(mock.completed >= 2 * STEPS && !mock.first, "the mock delayed too few actions, or lost some");
	MUST(mock.aside >= STEPS, "%lld updates that overlap the forward", (long long)mock.aside);
	return 0;
}

static void one_of(const char *sets, enum vfm_dtype dt, enum vfm_recompute r,
	int (*fn)(struct vfm_launch *l, const void *arg), bool fails)
{
	struct layout lay = {.name = sets, .p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1, .vpp = r}, .dtype = dt};
	int st = status_of(&lay, fn);

	if ((st != 0) != fails)
		fail_msg("%s: the rank ended with %d, lost waits: %d", sets, st, lost_wait);
}

static void one(const char *sets, enum vfm_dtype dt, enum vfm_recompute r)
{
	one_of(sets, dt, r, one_rank, false);
}

static void test_one_rank(void **state)
{
	(void)state;
	one(dit, VFM_F32, VFM_RECOMPUTE_NONE);
	one(dit, VFM_BF16, VFM_RECOMPUTE_SELECTIVE);
	one(moviegen, VFM_F32, VFM_RECOMPUTE_FULL);
	one(stdit, VFM_F32, VFM_RECOMPUTE_NONE);
	one(moe, VFM_F32, VFM_RECOMPUTE_NONE);
	one(moe, VFM_BF16, VFM_RECOMPUTE_FULL);
	one(token, VFM_F32, VFM_RECOMPUTE_SELECTIVE);
	one(lean, VFM_BF16, VFM_RECOMPUTE_SELECTIVE);
	one(lean, VFM_BF16, VFM_RECOMPUTE_FULL);
	one(lean, VFM_BF16, VFM_RECOMPUTE_OUTPUTS);
	one(lean, VFM_BF16, VFM_RECOMPUTE_LIGHT);
	one(half, VFM_BF16, VFM_RECOMPUTE_NONE);
	one(half_moviegen, VFM_BF16, VFM_RECOMPUTE_LIGHT);
	one(fp8, VFM_BF16, VFM_RECOMPUTE_NONE);
	one(fp8, VFM_BF16, VFM_RECOMPUTE_LIGHT);
	one(base8, VFM_F32, VFM_RECOMPUTE_NONE);
	one(base8, VFM_BF16, VFM_RECOMPUTE_FULL);
	one(away, VFM_F32, VFM_RECOMPUTE_LIGHT);
	one(away, VFM_BF16, VFM_RECOMPUTE_NONE);
	one(away8, VFM_BF16, VFM_RECOMPUTE_FULL);
	one(mapped, VFM_BF16, VFM_RECOMPUTE_FULL);
	one(mapped, VFM_F32, VFM_RECOMPUTE_NONE);
	one(base4, VFM_BF16, VFM_RECOMPUTE_FULL);
	one(away4, VFM_BF16, VFM_RECOMPUTE_NONE);
	one(mapped_int8, VFM_F32, VFM_RECOMPUTE_FULL);
}

/* Trains on the CPU, and on the mock with a lost wait.  Returns 0 if the bits agree. */
static int lose_a_wait(struct vfm_launch *l, const void *arg)
{
	const struct layout *lay = arg;
	struct outcome a = {0}, b = {0};
	struct vfm_config c;

	(void)l;
	if (lost_wait)
		freopen("/dev/null", "w", stderr); /* of an expected failure */
	configure(&c, lay->name, lay->dtype, NULL);
	c.train.overlap_update = VFM_OVERLAP_OFF;
	c.train.recompute = lay->p.vpp;
	OK(vfm_parallel_check(&c.parallel, &c.model, 1, &err));
	train_in(&a, &c, vfm_comm_self(), vfm_cpu_open(&err));
	mock.lost_wait = lost_wait;
	train_in(&b, &c, vfm_comm_self(), mock_open(true, &err));
	compare(lay->name, &a, &b);
	return 0;
}

/* The mock detects weights that ops read before their copy arrives, and copies to a buffer that is still in use. */
static void test_lost_waits(void **state)
{
	static const char *const sets[] = {away, away8, away4, mapped};

	(void)state;
	for (lost_wait = 0; lost_wait <= MOCK_LOSES_RELEASE; lost_wait++) {
		for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
			one_of(sets[i], VFM_BF16, VFM_RECOMPUTE_FULL, lose_a_wait, lost_wait != MOCK_LOSES_NONE);
	}
	lost_wait = MOCK_LOSES_NONE;
}

/* Two networks in turn have the bits of the CPU: that of even and that of odd steps, which wait in either memory. */
static void test_two_networks(void **state)
{
	(void)state;
	for (exchanges = 1; exchanges <= 4; exchanges++) {
		one(dit, VFM_F32, VFM_RECOMPUTE_NONE);
		one(moe, VFM_BF16, VFM_RECOMPUTE_FULL);
		one(lean, VFM_BF16, VFM_RECOMPUTE_SELECTIVE);
		one(fp8, VFM_BF16, VFM_RECOMPUTE_NONE);
		one(base8, VFM_BF16, VFM_RECOMPUTE_FULL);
		one(away4, VFM_BF16, VFM_RECOMPUTE_FULL);
		one(mapped, VFM_F32, VFM_RECOMPUTE_NONE);
	}
	exchanges = 0;
}

/* ---- graphs ---- */

/* A mode of failure, and the expected numbers of graphs.  The first EAGER packs of a run are not captured. */
enum { EAGER = 2, ALL = STEPS * PACKS };
struct refusal {
	const char *sets;
	int64_t launched, dropped, refused;
	int drop_each;
	int64_t break_at;
	bool break_always;
	bool recurring; /* train.graphs=auto */
	bool in_order;  /* train.overlap_update=off */
};
static const struct refusal *refusal; /* argument of the process forked next */

static int graphs(struct vfm_launch *l, const void *arg)
{
	const struct layout *lay = arg;
	const struct refusal *r = refusal;
	struct outcome a = {0}, b = {0};
	struct vfm_config c;

	(void)l;
	vfm_log_set_quiet(true);
	configure(&c, r->sets, lay->dtype, NULL);
	c.train.overlap_update = r->in_order ? VFM_OVERLAP_OFF : VFM_OVERLAP_ON;
	c.train.recompute = lay->p.vpp;
	c.parallel.bucket_mib = 0;
	OK(vfm_parallel_check(&c.parallel, &c.model, 1, &err));
	train_in(&a, &c, vfm_comm_self(), vfm_cpu_open(&err));
	c.train.graphs = r->recurring ? VFM_GRAPHS_AUTO : VFM_GRAPHS_ON;
	mock.drop_each = r->drop_each;
	mock.break_at = r->break_at;
	mock.break_always = r->break_always;
	train_in(&b, &c, vfm_comm_self(), mock_open(true, &err));
	compare(r->sets, &a, &b);
	MUST(a.graphs == 0 && b.graphs == r->launched && mock.launched == r->launched,
		"%lld graphs launched, %lld reported", (long long)mock.launched, (long long)b.graphs);
	MUST(mock.dropped == r->dropped && mock.refused == r->refused, "%lld dropped, %lld refused",
		(long long)mock.dropped, (long long)mock.refused);
	return 0;
}

/* Captured packs give the bits of the CPU and contain no refused operation.  After any failure each pack still counts
 * exactly once. */
static void test_graphs(void **state)
{
	static const struct refusal plain[] = {
		{dit, ALL - EAGER, 0, 0, 0, 0, false, false, true},
		{moviegen, ALL - EAGER, 0, 0, 0, 0, false, false, true},
		{stdit, ALL - EAGER, 0, 0, 0, 0, false, false, true},
		{moe, ALL - EAGER, 0, 0, 0, 0, false, false, true},
		/* graph_end fails always, or every third time; an op fails as a first use, or permanently. */
		{dit, 0, 8, 0, 1, 0, false, false, true},
		{moe, ALL - EAGER - 3, 3, 0, 3, 0, false, false, true},
		{dit, 0, 8, 0, 0, 40, false, false, true},
		{stdit, 0, 8, 0, 0, 200, false, false, true},
		{dit, 0, 1, 0, 0, 7, true, false, true},
		/* Configurations that cannot be captured. */
		{token, 0, 0, 0, 0, 0, false, false, true},
		{lean, 0, 0, 0, 0, 0, false, false, true},
		{fp8, ALL - EAGER - 2, 2, 0, 5, 0, false, false, true}, /* amax values of dropped graphs do not count */
		/* The first pack of each shape runs eagerly, too. */
		{dit, ALL - EAGER - PACKS, 0, 0, 0, 0, false, true, true},
		{moe, ALL - EAGER - PACKS, 0, 0, 0, 0, false, true, true},
		/* So does the first pack after an update that overlaps it. */
		{dit, ALL - EAGER - (STEPS - 1), 0, 0, 0, 0, false, false, false},
		{fp8, ALL - EAGER - (STEPS - 1), 0, 0, 0, 0, false, false, false},
		{moe, ALL - PACKS - EAGER - 1, 0, 0, 0, 0, false, true, false},
		/* Captured packs make their own copies of frozen weights, also after failures. */
		{base8, ALL - EAGER, 0, 0, 0, 0, false, false, true},
		{base8, ALL - EAGER - 2, 2, 0, 5, 0, false, false, true},
		{base8, 0, 8, 0, 0, 60, false, false, true},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		refusal = &plain[i];
		in_ranks(&(struct layout){.name = plain[i].sets,
				 .p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1, .vpp = (int64_t)(i % 4)},
				 .dtype = plain[i].sets == lean || i % 2 ? VFM_BF16 : VFM_F32},
			graphs);
	}
}

/* ---- ranks ---- */

static int many_ranks(struct vfm_launch *l, const void *arg)
{
	const struct layout *lay = arg;
	struct vfm_host_comm_opts opts = {.timeout_s = 20};
	struct outcome a = {0}, b = {0};
	struct vfm_config c, plain;
	struct vfm_comm *world;

	vfm_par_set_threads(1);
	configure(&c, lay->name, lay->dtype, &lay->p);
	OK(vfm_comm_host_new(l, &opts, &world, &err));
	OK(vfm_parallel_check(&c.parallel, &c.model, l->size, &err));
	plain = c;
	plain.parallel.overlap = VFM_OVERLAP_OFF;
	train_in(&a, &plain, world, vfm_cpu_open(&err));
	train_in(&b, &c, world, mock_open(false, &err));
	for (int k = 0; k < STEPS; k++)
		MUST((lay->p.pp > 1 ? b.s[k].rank.bubble_s : b.s[k].rank.comm_s) > 0 && b.s[k].rank.comm_s >= 0 &&
				b.s[k].rank.host_s > 0 && b.s[k].rank.host_s < 60,
			"step %d: %g s of communication stalls, %g s of bubble, %g s on the host", k,
			b.s[k].rank.comm_s, b.s[k].rank.bubble_s, b.s[k].rank.host_s);
	compare(lay->name, &a, &b);
	vfm_comm_free(world);
	vfm_launch_end(l);
	return 0;
}

static void test_ranks(void **state)
{
	static const struct layout lay[] = {
		{dit, P(1, 2, 1, 1, 1, 1, 0, .bucket_mib = 0), VFM_F32},
		{dit, P(1, 1, 1, 2, 1, 1, 0, .fsdp = true), VFM_BF16},
		{moviegen, P(1, 1, 1, 2, 1, 1, 0, .distopt = true), VFM_BF16},
		{dit, P(1, 1, 2, 1, 1, 1, 0, .schedule = VFM_PP_1F1B), VFM_F32},
		{stdit, P(1, 1, 3, 1, 1, 1, 0, .schedule = VFM_PP_ZB), VFM_F32},
		{stdit, P(1, 3, 1, 1, 1, 1, 0, .bucket_mib = 0), VFM_F32},
		{moe, P(1, 2, 1, 1, 1, 1, 0, .bucket_mib = 0), VFM_F32},
		{moe, P(1, 1, 1, 2, 2, 1, 0, .distopt = true), VFM_F32},
		{token, P(1, 1, 1, 2, 2, 1, 0, .fsdp = true), VFM_F32},
		{dit, P(2, 1, 2, 1, 1, 1, 0, .schedule = VFM_PP_1F1B), VFM_F32},
		{dit, P(2, 1, 1, 1, 1, 1, 0, .overlap = VFM_OVERLAP_ON, .bucket_mib = 0), VFM_BF16},
		{moviegen, P(2, 2, 1, 1, 1, 1, 0, .overlap = VFM_OVERLAP_ON, .fsdp = true), VFM_F32},
		{moe, P(1, 2, 1, 2, 2, 1, 0, .overlap = VFM_OVERLAP_ON, .cp_mode = VFM_CP_A2A), VFM_F32},
		{stdit, P(1, 2, 1, 1, 1, 1, 0, .overlap = VFM_OVERLAP_ON), VFM_F32},
		{light, P(4, 1, 1, 1, 1, 1, 0, .overlap = VFM_OVERLAP_ON), VFM_BF16},
		{full, P(2, 1, 2, 1, 1, 1, 0, .overlap = VFM_OVERLAP_ON, .schedule = VFM_PP_ZB), VFM_F32},
		{fp8_light, P(2, 1, 1, 1, 1, 1, 0, .overlap = VFM_OVERLAP_ON), VFM_BF16},
		{lean, P(1, 1, 1, 2, 1, 1, 0, .distopt = true), VFM_BF16},
		{half, P(1, 1, 2, 1, 1, 1, 0, .schedule = VFM_PP_1F1B), VFM_BF16},
		{half_moviegen, P(2, 1, 2, 1, 1, 1, 0, .schedule = VFM_PP_ZB), VFM_BF16},
		{fp8, P(2, 1, 1, 2, 1, 1, 0, .overlap = VFM_OVERLAP_ON, .fsdp = true), VFM_BF16},
		{fp8, P(1, 1, 3, 1, 1, 1, 0, .schedule = VFM_PP_ZB), VFM_BF16},
		{base8, P(1, 1, 1, 2, 1, 1, 0, .fsdp = true), VFM_BF16},
		{base8, P(1, 2, 1, 2, 1, 1, 0, .overlap = VFM_OVERLAP_ON, .fsdp = true), VFM_F32},
		{base8, P(1, 1, 3, 1, 1, 1, 0, .schedule = VFM_PP_ZB), VFM_F32},
		{away, P(1, 1, 1, 2, 1, 1, 0, .fsdp = true), VFM_BF16},
		{away8, P(1, 2, 1, 2, 1, 1, 0, .overlap = VFM_OVERLAP_ON, .fsdp = true), VFM_F32},
		{away, P(1, 1, 3, 1, 1, 1, 0, .schedule = VFM_PP_ZB), VFM_F32},
		{mapped, P(2, 1, 1, 2, 1, 1, 0, .fsdp = true), VFM_F32},
		{base4, P(1, 2, 1, 2, 1, 1, 0, .overlap = VFM_OVERLAP_ON, .fsdp = true), VFM_F32},
		{away4, P(1, 1, 1, 2, 1, 1, 0, .fsdp = true), VFM_BF16},
		{mapped_int8, P(1, 1, 2, 1, 1, 1, 0, .schedule = VFM_PP_ZB), VFM_F32},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lay) / sizeof(lay[0]); i++)
		in_ranks(&lay[i], many_ranks);
}

/* ---- a whole run ---- */

static char dir[] = "/tmp/vfm_mock_XXXXXX";
static char *plan;

static int setup(void **state)
{
	static const struct dataset_dims dims[] = {
		{1, 4, 4, 3}, {2, 4, 4, 5}, {1, 8, 4, 0}, {3, 4, 6, 2}, {1, 4, 4, 1}};
	struct vfm_packing_opts o = {
		.context = 48, .batch = 2, .epochs = 6, .seed = 3, .cost = vfm_pack_cost_default()};
	char *data;

	(void)state;
	assert_non_null(mkdtemp(dir));
	data = vfm_strfmt("%s/data", dir);
	plan = vfm_strfmt("%s/plan.jsonl", dir);
	assert_int_equal(dataset_make(data, dims, 5, 23, 10, &err), 0);
	assert_int_equal(dataset_plan(plan, data, &o, &err), 0);
	free(data);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(plan);
	return vfm_rm_rf(dir, NULL);
}

/* The records of a run, one line per step. */
struct record_log {
	struct vfm_buf text;
	volatile sig_atomic_t *stop; /* set after line stop_at */
	int lines, stop_at;
	int closes_at; /* from this line on, the reader of stdout has exited; 0: never */
};

static int on_step(void *ctx, const json_t *o, struct vfm_err *e)
{
	struct record_log *s = ctx;

	(void)e;
	vfm_buf_addf(&s->text, "%lld %.17g %.17g %lld\n", (long long)json_integer_value(json_object_get(o, "step")),
		json_number_value(json_object_get(o, "loss")), json_number_value(json_object_get(o, "grad_norm")),
		(long long)json_integer_value(json_object_get(o, "tokens")));
	MUST(json_number_value(json_object_get(o, "step_ms")) > 0, "step_ms is not positive");
	if (++s->lines == s->stop_at)
		*s->stop = 1;
	return s->closes_at && s->lines >= s->closes_at ? VFM_EPIPE : 0;
}

static const struct layout *variant; /* of a run: uses only name (settings) and dtype */

static int run_in(const char *name, struct vfm_dev *d, struct record_log *log, int stop_at)
{
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	char *path = vfm_strfmt("%s/%s/%s", dir, vfm_dtype_name(variant->dtype), name);
	char *sets = vfm_strfmt("model.layers=2 model.hidden=32 model.heads=2 model.channels=4 model.text_dim=8 "
				"ckpt.every=3 ckpt.keep=0 train.steps=10 parallel.bucket_mib=0 %s",
		variant->name);
	volatile sig_atomic_t stop = 0;
	struct vfm_context x = {.job = {.world = vfm_comm_self()}, .device = {.dev = d, .stream = s}};
	struct vfm_run_opts o = {.preview = VFM_PREVIEW_DEFAULTS,
		.plan = plan,
		.dir = path,
		.resume = "auto",
		.stop = &stop,
		.on_step = on_step,
		.ctx = log};
	struct vfm_config c;
	int rc;

	configure(&c, sets, variant->dtype, NULL);
	log->stop = &stop;
	log->stop_at = stop_at;
	OK(vfm_parallel_check(&c.parallel, &c.model, 1, &err));
	OK(vfm_mesh_init(&x.mesh, &c.parallel, x.job.world, d, &err));
	rc = vfm_run(&x, &c, &o, &err);
	vfm_mesh_release(&x.mesh);
	MUST(d->mem_now == 0, "%lld bytes of device memory leaked", (long long)d->mem_now);
	d->t->stream_free(s);
	d->t->dev_free(d);
	free(x.job.mark);
	free(path);
	free(sets);
	return rc;
}

static void same_checkpoint(const char *name, int step)
{
	struct vfm_ckpt *a, *b;
	const char *dt = vfm_dtype_name(variant->dtype);
	char *pa = vfm_strfmt("%s/%s/cpu/ckpt/step-%08d", dir, dt, step),
	     *pb = vfm_strfmt("%s/%s/%s/ckpt/step-%08d", dir, dt, name, step);

	OK(vfm_ckpt_open(&a, pa, &err));
	OK(vfm_ckpt_open(&b, pb, &err));
	MUST(a->n == b->n && a->n > 40, "%d tensors instead of %d", b->n, a->n);
	for (int i = 0; i < a->n; i++) {
		size_t n = (size_t)a->t[i].bytes;
		char *x = vfm_malloc(2 * n);

		OK(vfm_ckpt_read_tensor(a, &a->t[i], NULL, VFM_F32, x, &err));
		OK(vfm_ckpt_read_tensor(b, &b->t[i], NULL, VFM_F32, x + n, &err));
		MUST(!memcmp(x, x + n, n), "step %d: %s differs", step, a->t[i].name);
		free(x);
	}
	vfm_ckpt_close(a);
	vfm_ckpt_close(b);
	free(pa);
	free(pb);
}

/* The reader of stdout exits after each of the first lines: metrics.jsonl still has a line for every step. */
static void closed_stdout(void)
{
	for (int at = 1; at <= 6; at++) {
		char *name = vfm_strfmt("closed%d", at),
		     *path = vfm_strfmt("%s/%s/%s/metrics.jsonl", dir, vfm_dtype_name(variant->dtype), name), *text;
		struct record_log first = {.closes_at = at}, second = {0};
		size_t len;
		int lines = 0;

		MUST(run_in(name, mock_open(true, &err), &first, 0) == VFM_ESIGNAL, "the run did not stop");
		OK(run_in(name, mock_open(true, &err), &second, 0));
		OK(vfm_read_file(path, 1 << 20, &text, &len, &err));
		for (size_t i = 0; i < len; i++)
			lines += text[i] == '\n';
		MUST(lines == 10, "stdout closed at line %d: %d lines of 10 steps", at, lines);
		vfm_buf_release(&first.text);
		vfm_buf_release(&second.text);
		free(text);
		free(path);
		free(name);
	}
}

/* Runs to the end, and once more with a stop signal after a line, which the mock observes a step later. */
static int whole_run(struct vfm_launch *l, const void *arg)
{
	struct record_log cpu = {0}, one = {0}, two = {0};

	(void)l;
	variant = arg;
	vfm_log_set_quiet(true);
	OK(run_in("cpu", vfm_cpu_open(&err), &cpu, 0));
	OK(run_in("mock", mock_open(true, &err), &one, 0));
	MUST(!strcmp(cpu.text.data, one.text.data), "the records on the mock are\n%sinstead of\n%s", one.text.data,
		cpu.text.data);
	for (int step = 3; step <= 9; step += 3)
		same_checkpoint("mock", step);
	same_checkpoint("mock", 10);

	MUST(run_in("stopped", mock_open(true, &err), &two, 4) == VFM_ESIGNAL, "the run was not stopped");
	MUST(two.lines == 5 || two.lines == 6, "%d lines",
		two.lines); /* the host reads step 4 after enqueueing step 5 */
	OK(run_in("stopped", mock_open(true, &err), &two, 0));
	MUST(!strcmp(cpu.text.data, two.text.data), "the records after stop and resume are\n%sinstead of\n%s",
		two.text.data, cpu.text.data);
	same_checkpoint("stopped", 10);
	closed_stdout();
	vfm_buf_release(&cpu.text);
	vfm_buf_release(&one.text);
	vfm_buf_release(&two.text);
	return 0;
}

static void test_run(void **state)
{
	(void)state;
	in_ranks(&(struct layout){.name = "", .p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1}, .dtype = VFM_F32}, whole_run);
	in_ranks(&(struct layout){.name = "train.fp8=delayed train.fp8_history=3",
			 .p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1},
			 .dtype = VFM_BF16},
		whole_run);
}

/* ---- sampling ---- */

enum { TOKENS = 2 * 3 * 4 + 4 * 4, WIDTH = 16, EVALS = 5 };

static void watch(void *ctx, int64_t done, int64_t total)
{
	int64_t *next = ctx;

	MUST(done == (*next)++ && (total == EVALS || total == 2 * EVALS - 1), "evaluation %lld of %lld",
		(long long)done, (long long)total);
}

/* edm: heun.  flow: unipc, of whose evaluations only the middle ones are guided. */
static void sample_on(struct vfm_dev *d, const struct vfm_config *c, float *tokens)
{
	static const int32_t grid[2][3] = {{2, 3, 4}, {1, 4, 4}}, cu_text[3] = {0, 2, 5};
	static const uint64_t id[2] = {3, 4};
	static const float text[5 * 8] = {1, -2, 3, [9] = 0.5f, [17] = 2, [30] = -1};
	int64_t next = 0;
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	struct vfm_sample_request r = {.n = 2, .id = id, .grid = grid, .text = text, .cu_text = cu_text};
	struct vfm_sample_job job = {
		.model = &c->model, .diffusion = &c->diffusion, .mesh = vfm_mesh_one(), .stream = s, .dtype = VFM_F32};
	struct vfm_sampler how;
	struct vfm_params ps;

	vfm_sampler_defaults(&how);
	how.solver.steps = EVALS;
	if (c->diffusion.kind == VFM_FLOW) {
		how.solver.kind = VFM_SOLVER_UNIPC;
		how.cfg_interval[0] = 0.3;
		how.cfg_interval[1] = 0.7;
	}
	how.progress = watch;
	how.ctx = &next;
	vfm_params_init(&ps, s, vfm_mesh_one());
	job.net = vfm_model_new(&c->model, &ps);
	OK(vfm_params_alloc(&ps, VFM_F32, false, &err));
	OK(vfm_params_fill_dense(&ps, 3, &err));
	OK(vfm_sampler_run(&how, &job, &r, tokens, &err));
	MUST(next == (c->diffusion.kind == VFM_FLOW ? EVALS : 2 * EVALS - 1), "%lld evaluations", (long long)next);
	vfm_model_free(job.net);
	vfm_params_release(&ps);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

static int sampling(struct vfm_launch *l, const void *arg)
{
	static float a[TOKENS * WIDTH], b[TOKENS * WIDTH];
	struct vfm_config c;

	(void)l, (void)arg;
	configure(&c, dit, VFM_F32, NULL);
	for (int kind = VFM_EDM; kind <= VFM_FLOW; kind++) {
		c.diffusion.kind = kind;
		sample_on(vfm_cpu_open(&err), &c, a);
		sample_on(mock_open(true, &err), &c, b);
		MUST(!memcmp(a, b, sizeof(a)) && a[0] == a[0], "the samples differ");
	}
	return 0;
}

static void test_sampling(void **state)
{
	(void)state;
	in_ranks(&(struct layout){.name = "sampling", .p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1}}, sampling);
}

/* ---- the mock itself ---- */

static void caught(int sig)
{
	(void)sig;
	_exit(9);
}

static int too_early(struct vfm_launch *l, const void *arg)
{
	struct vfm_dev *d = mock_open(true, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	struct vfm_event *e = d->t->event_new(d, &err);
	float x = 3, *dev = vfm_dev_alloc(s, 4, "a number", &err), *host = d->t->alloc_host(d, 4, "a number", &err);

	(void)l, (void)arg;
	OK(d->t->to_device(s, dev, &x, 4, &err));
	OK(d->t->to_host(s, host, dev, 4, &err));
	OK(d->t->event_record(e, s, &err));
	MUST(*host != 3, "the copy arrived at once");
	for (int i = 0; i < MOCK_POLLS; i++)
		MUST(!d->t->event_passed(e) && *host != 3, "the copy arrived early");
	MUST(d->t->event_passed(e) && *host == 3, "the copy never arrived");
	*host = 4;
	OK(d->t->to_device(s, dev, host, 4, &err));
	OK(d->t->to_host(s, &x, dev, 4, &err));
	OK(d->t->event_record(e, s, &err));
	OK(d->t->event_sync(e, &err));
	MUST(x == 4, "%g instead of 4", (double)x);
	signal(SIGSEGV, caught);
	return *(volatile float *)dev == 4 ? 7 : 8; /* host access to device memory must fault */
}

static void test_device(void **state)
{
	(void)state;
	assert_int_equal(status_of(&(struct layout){.p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1}}, too_early), 9);
}

/* A copy on another stream that does not wait for the last op on its array. */
static int overtake(struct vfm_launch *l, const void *arg)
{
	struct vfm_dev *d = mock_open(false, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err), *other = d->t->stream_new(d, true, &err);
	struct vfm_event *e = NULL;
	float *dev = vfm_dev_alloc(s, 4, "a number", &err), *host = d->t->alloc_host(d, 4, "a number", &err);
	struct vfm_tensor x = vfm_t1(dev, VFM_F32, 1);

	(void)l, (void)arg;
	OK(d->t->zero(s, dev, 4, &err));
	OK(vfm_stream_follow(other, s, &e, &err));
	OK(d->t->to_host(other, host, dev, 4, &err));
	OK(vfm_op_axpby(s, &(struct vfm_axpby){.alpha = 2, .x = x, .y = x}, &err));
	OK(vfm_stream_follow(other, s, &e, &err));
	OK(d->t->to_host(other, host, dev, 4, &err));
	OK(vfm_op_axpby(s, &(struct vfm_axpby){.alpha = 2, .x = x, .y = x}, &err));
	signal(SIGABRT, caught);
	OK(d->t->to_host(other, host, dev, 4, &err));
	return 8;
}

static void test_order(void **state)
{
	(void)state;
	assert_int_equal(status_of(&(struct layout){.p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1}}, overtake), 9);
}

/* Uploads that follow one another at once: a buffer is not filled again before its copies are done, and arrays that
 * need more than a block of pinned memory arrive, too. */
static int upload_often(struct vfm_launch *l, const void *arg)
{
	enum { N = 12, SMALL_BYTES = 1000, LARGE_BYTES = 5 << 20 };
	struct vfm_dev *d = mock_open(true, &err);
	const struct vfm_dev_table *t = d->t;
	struct vfm_stream *s = t->stream_new(d, false, &err);
	struct vfm_upload *u = vfm_upload_new(s, &err);
	char *host = vfm_malloc(LARGE_BYTES), *got = vfm_malloc(LARGE_BYTES), *dst[N][2];
	struct vfm_event *done = NULL;
	int bad = 0;

	(void)l, (void)arg;
	OK(u ? 0 : -1);
	for (int i = 0; i < N; i++) {
		size_t bytes[2] = {SMALL_BYTES, i % 5 ? SMALL_BYTES : LARGE_BYTES};

		OK(vfm_upload_begin(u, &err));
		for (int k = 0; k < 2; k++) {
			dst[i][k] = vfm_dev_alloc(s, bytes[k], "a test", &err);
			OK(dst[i][k] ? 0 : -1);
			memset(host, 2 * i + k, bytes[k]);
			OK(vfm_dev_upload(s, dst[i][k], host, bytes[k], &err));
		}
		OK(vfm_upload_end(u, &done, &err));
	}
	OK(t->event_wait(done, s, &err));
	for (int i = 0; i < N; i++)
		for (int k = 0; k < 2; k++) {
			size_t bytes = k && i % 5 == 0 ? LARGE_BYTES : SMALL_BYTES;

			OK(t->to_host(s, got, dst[i][k], bytes, &err));
			OK(t->stream_sync(s, &err));
			for (size_t j = 0; j < bytes; j++)
				bad += got[j] != 2 * i + k;
			vfm_dev_free(s, dst[i][k], bytes);
		}
	vfm_upload_free(u);
	free(host);
	free(got);
	MUST(!bad, "%d wrong bytes", bad);
	return 7;
}

static void test_upload(void **state)
{
	(void)state;
	assert_int_equal(status_of(&(struct layout){.p = {.tp = 1, .cp = 1, .pp = 1, .dp = 1}}, upload_often), 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_device),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_upload),
		cmocka_unit_test(test_one_rank),
		cmocka_unit_test(test_lost_waits),
		cmocka_unit_test(test_two_networks),
		cmocka_unit_test(test_graphs),
		cmocka_unit_test(test_ranks),
		cmocka_unit_test(test_run),
		cmocka_unit_test(test_sampling),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
