/* The collectives of a simulated step are those of a real one: of 4 or 8 processes that train on asynchronous devices
 * (async_mock.h) over a transport (shm_transport.h).  Each rank enqueues the same calls in the same order, on the same
 * groups and with as many bytes, and holds as much memory at most.  A step without one of them is shorter. */
#include "async_mock.h"
#include "base/log.h"
#include "base/par.h"
#include "comm/device/comm_dev.h"
#include "shm_transport.h"
#include "train/predict/bench.h"
#include "train/predict/simulate.h"

#include "ranks.h"

enum { MOST_RANKS = 8, LIST = 1 << 18 };

/* The calls of each rank as text, a line each; shared with the ranks of a job. */
static char (*lists)[LIST];

struct layout_of_job {
	struct layout lay; /* first; p: the number of ranks alone */
	const char *preset, *sets;
	int packs;
};
#define JOB(preset, sets, ranks, packs)                                                                                \
	{                                                                                                              \
		{sets, {.tp = 1, .cp = 1, .pp = 1, .dp = ranks}, VFM_BF16}, preset, sets, packs                        \
	}

static struct vfm_config config_of(const struct layout_of_job *j)
{
	char text[512], *save = NULL, *word;
	struct vfm_config c;

	vfm_config_defaults(&c);
	OK(vfm_model_preset(j->preset, &c.model, &err));
	snprintf(text, sizeof(text),
		"train.dtype=bf16 model.layers=4 model.hidden=64 model.heads=4 model.kv_heads=0 model.ffn=96 "
		"model.text_dim=8 model.channels=4 %s",
		j->sets);
	for (word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
		OK(vfm_bench_set(&c, word, &err));
	OK(vfm_config_check(&c, &err));
	return c;
}

static struct vfm_bench_step step_of(const struct layout_of_job *j)
{
	return (struct vfm_bench_step){
		.samples = 1, .grid = {2, 4, 4}, .text_len = 8, .packs = j->packs, .warmup = 2, .steps = 1};
}

/* ---- a real job, over a transport that lists its calls ---- */

static struct {
	char *list;
	size_t n;
	struct named {
		const struct vfm_transport_comm *w;
		char name[16];
	} group[64];
	int groups;
} calls;

static void name_group(const struct vfm_transport_comm *w, const char *name)
{
	struct named *g = &calls.group[calls.groups];

	if (!w)
		return;
	for (int i = 0; i < calls.groups; i++)
		if (calls.group[i].w == w)
			g = &calls.group[i];
	calls.groups += g == &calls.group[calls.groups];
	MUST(calls.groups < 64, "more groups than were thought of");
	g->w = w;
	snprintf(g->name, sizeof(g->name), "%s", name);
}

static void list_call(const struct vfm_transport_comm *w, const char *op, double bytes, const char *more)
{
	const char *name = "?";

	for (int i = 0; i < calls.groups; i++)
		if (calls.group[i].w == w)
			name = calls.group[i].name;
	if (calls.n < LIST - 128)
		calls.n += (size_t)sprintf(
			calls.list + calls.n, "%s '%s' of %d, %.0f bytes%s\n", op, name, w->size, bytes, more);
}

static int list_init(struct vfm_transport_comm **w, struct vfm_dev *d, const unsigned char id[VFM_TRANSPORT_ID],
	int rank, int size, const char *name, struct vfm_err *e)
{
	int rc = shmt_init(w, d, id, rank, size, name, e);

	name_group(*w, name);
	return rc;
}

static int list_split(struct vfm_transport_comm *w, int color, int key, bool p2p, const char *name,
	struct vfm_transport_comm **out, struct vfm_err *e)
{
	int rc = shmt_split(w, color, key, p2p, name, out, e);

	name_group(*out, name);
	return rc;
}

static int list_all_reduce(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, int64_t n, enum vfm_dtype dt, struct vfm_err *e)
{
	list_call(w, "all_reduce", (double)n * (double)vfm_dtype_size(dt), "");
	return shmt_all_reduce(w, s, x, n, dt, e);
}

static int list_all_gather(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	size_t bytes_each, struct vfm_err *e)
{
	list_call(w, "all_gather", (double)bytes_each * w->size, "");
	return shmt_all_gather(w, s, in, out, bytes_each, e);
}

static int list_reduce_scatter(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	int64_t n_each, enum vfm_dtype dt, struct vfm_err *e)
{
	list_call(w, "reduce_scatter", (double)n_each * w->size * (double)vfm_dtype_size(dt), "");
	return shmt_reduce_scatter(w, s, in, out, n_each, dt, e);
}

static int list_broadcast(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, size_t bytes, int root, struct vfm_err *e)
{
	list_call(w, "broadcast", (double)bytes, "");
	return shmt_broadcast(w, s, x, bytes, root, e);
}

static int list_all_to_all(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	size_t bytes_each, struct vfm_err *e)
{
	list_call(w, "all_to_all", (double)bytes_each * (w->size - 1), " sent");
	return shmt_all_to_all(w, s, in, out, bytes_each, e);
}

static int list_messages(
	struct vfm_transport_comm *w, struct vfm_stream *s, const struct vfm_transport_msg *m, int n, struct vfm_err *e)
{
	double sent = 0;

	for (int i = 0; i < n; i++)
		sent += m[i].send ? (double)m[i].bytes : 0;
	list_call(w, "messages", sent, " sent");
	return shmt_messages(w, s, m, n, e);
}

static struct vfm_transport listing(void)
{
	struct vfm_transport t = shm_transport;

	t.init = list_init;
	t.split = list_split;
	t.all_reduce = list_all_reduce;
	t.all_gather = list_all_gather;
	t.reduce_scatter = list_reduce_scatter;
	t.broadcast = list_broadcast;
	t.all_to_all = list_all_to_all;
	t.messages = list_messages;
	return t;
}

/* Of the last step alone. */
static void forget_calls(void *ctx, struct vfm_dev *d)
{
	(void)ctx, (void)d;
	calls.n = 0;
	calls.list[0] = 0;
}

/* Packed weights, which only a CPU keeps; they are dropped at the end. */
static const struct vfm_dev_table *mocked;
static int64_t copies;

static void drop_and_count(struct vfm_stream *s)
{
	int64_t before = s->dev->mem_now;

	mocked->drop_copies(s);
	copies += before - s->dev->mem_now;
}

/* The line about memory that ends a list. */
static void list_peak(char *to, int64_t bytes)
{
	sprintf(to, "%lld bytes of memory\n", (long long)bytes);
}

static int real_rank(struct vfm_launch *l, const void *arg)
{
	const struct layout_of_job *j = arg;
	struct vfm_host_comm_opts opts = {.timeout_s = 60};
	struct vfm_dev_table table;
	struct vfm_context x = {0};
	struct vfm_transport transport = listing();
	struct vfm_config c = config_of(j);
	struct vfm_bench_step b = step_of(j);
	struct vfm_bench_result r;

	vfm_par_set_threads(1);
	setenv("VFM_COMM", "shm", 1);
	calls.list = lists[l->rank];
	b.before = forget_calls;
	x.job.launch = *l;
	OK(vfm_comm_host_new(l, &opts, &x.job.world, &err));
	OK(vfm_parallel_check(&c.parallel, &c.model, l->size, &err));
	x.device.dev = mock_open(false, &err);
	mocked = x.device.dev->t;
	table = *mocked;
	table.drop_copies = drop_and_count;
	x.device.dev->t = &table;
	x.device.stream = x.device.dev->t->stream_new(x.device.dev, false, &err);
	OK(vfm_comm_dev_new(x.job.world,
		&(struct vfm_comm_dev_opts){.compute = x.device.stream, .transport = &transport, .host_memory = true},
		&x.world, &err));
	OK(vfm_mesh_init(&x.mesh, &c.parallel, x.world, x.device.dev, &err));
	OK(vfm_bench_run(&x, &c, &b, &r, &err));
	list_peak(calls.list + calls.n, x.device.dev->mem_peak - copies);
	vfm_mesh_release(&x.mesh);
	vfm_comm_dev_free(x.world, x.job.world);
	vfm_comm_free(x.job.world);
	vfm_launch_end(l);
	return 0;
}

/* ---- the same simulated ---- */

struct simulated {
	const struct layout_of_job *job;
	struct vfm_config config;
	char **list; /* [ranks]; NULL: none is made */
	bool skips;  /* an all-gather of tp in each step (gathers) */
	double s;    /* of the last step */
};

/* The all-gathers of tp on each rank. */
static struct {
	const struct vfm_comm_table *real;
	struct vfm_comm_table table;
	int n; /* so far */
} gathers[2];
static int gathers_of_step, left_out;

static int gather_or_not(struct vfm_comm *c, struct vfm_stream *s, const struct vfm_coll *k, struct vfm_err *e)
{
	if (k->kind == VFM_C_ALL_GATHER && gathers[c->rank].n++ % gathers_of_step == left_out)
		return 0;
	return gathers[c->rank].real->call(c, s, k, e);
}

static void count_gathers(struct vfm_comm *c)
{
	gathers[c->rank].real = c->t;
	gathers[c->rank].table = *c->t;
	gathers[c->rank].table.call = gather_or_not;
	gathers[c->rank].n = 0;
	c->t = &gathers[c->rank].table;
}

static int simulated_rank(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	struct simulated *m = ctx;
	struct vfm_bench_step b = step_of(m->job);
	struct vfm_bench_predicted predicted;
	struct vfm_bench_result r;
	const struct vfm_sim_launch *l;
	char *to = m->list ? m->list[x->job.world->rank] : NULL;
	size_t n;

	vfm_bench_predict(&b, 2, &predicted);
	TRY(vfm_context_open(x, &m->config, e));
	if (m->skips)
		count_gathers(x->mesh.group[VFM_AX_TP]);
	TRY(vfm_bench_run(x, &m->config, &b, &r, e));
	m->s = predicted.s[VFM_MID];
	l = vfm_sim_launches(x->device.dev, &n);
	for (size_t i = 0; to && i < n; i++)
		if (l[i].class == VFM_SIM_COMM)
			to += sprintf(to, "%s %s\n", l[i].op, l[i].shape);
	if (to) /* the mock's ops have no scratch */
		list_peak(to, x->device.dev->mem_peak - vfm_sim_held(x->device.dev).scratch);
	return 0;
}

static void simulate(struct simulated *m)
{
	static struct vfm_machine h200;
	struct vfm_simulated how;

	assert_int_equal(vfm_machine_load(&h200, "share/machines/h200.json", &err), 0);
	if (vfm_simulate(
		    &(struct vfm_simulation){
			    .config = &m->config, .machine = &h200, .ranks = world_of(&m->job->lay.p), .all = true},
		    simulated_rank, m, &how, &err) < 0)
		fail_msg("%s: %s", m->job->sets, err.msg);
}

/* Routing depends on values: without the sizes of what is sent to experts. */
static void drop_sizes(char *list)
{
	char *to = list;

	for (char *p = list; *p; p++) {
		if (p[0] == ',' && p[1] == ' ')
			p += strcspn(p, "\n");
		*to++ = *p;
	}
	*to = 0;
}

static void show_difference(const struct layout_of_job *j, int rank, const char *real, const char *sim)
{
	int line = 1;

	while (*real && *real == *sim) {
		line += *real == '\n';
		real++, sim++;
	}
	while (line > 1 && real[-1] != '\n')
		real--, sim--;
	fail_msg("%s, rank %d, call %d: '%.*s' is simulated as '%.*s'", j->sets, rank, line, (int)strcspn(real, "\n"),
		real, (int)strcspn(sim, "\n"), sim);
}

static void test_lists(void **state)
{
	static const struct layout_of_job jobs[] = {
		JOB("dit-s", "parallel.tp=2 parallel.pp=2 parallel.dp=2", 8, 4),
		JOB("dit-s", "parallel.tp=2 parallel.cp=2 parallel.dp=2 parallel.distopt=true", 8, 4),
		JOB("dit-s", "parallel.cp=2 parallel.dp=4 parallel.fsdp=true", 8, 8),
		JOB("dit-s", "parallel.cp=4 parallel.cp_a2a=2 parallel.pp=2", 8, 2),
		JOB("dit-s", "parallel.pp=4 parallel.dp=2 parallel.schedule=zb parallel.fsdp=true", 8, 8),
		JOB("dit-s", "parallel.pp=2 parallel.vpp=2 parallel.tp=4 parallel.overlap=on", 8, 4),
		JOB("moviegen-1b",
			"parallel.tp=2 parallel.dp=2 parallel.shard=2 parallel.fsdp=true train.recompute=full", 4, 4),
		JOB("moe-1b", "model.experts=4 model.moe_capacity=2 model.expert_ffn=32 parallel.ep=4 parallel.dp=4", 4,
			4),
		JOB("stdit-xl", "parallel.cp=2 parallel.tp=2 parallel.pp=2", 8, 2),
	};

	(void)state;
	for (size_t i = 0; i < sizeof(jobs) / sizeof(*jobs); i++) {
		struct simulated m = {.job = &jobs[i], .config = config_of(&jobs[i])};
		char *list[MOST_RANKS];

		for (int r = 0; r < world_of(&jobs[i].lay.p); r++) {
			lists[r][0] = 0;
			list[r] = calloc(1, LIST);
		}
		m.list = list;
		shmt_make();
		in_ranks(&jobs[i].lay, real_rank);
		simulate(&m);
		for (int r = 0; r < world_of(&jobs[i].lay.p); r++) {
			assert_true(list[r][0]);
			if (!strcmp(jobs[i].preset, "moe-1b")) {
				drop_sizes(lists[r]);
				drop_sizes(list[r]);
			}
			if (strcmp(lists[r], list[r]) != 0)
				show_difference(&jobs[i], r, lists[r], list[r]);
			free(list[r]);
		}
	}
}

static void test_left_out(void **state)
{
	static const struct layout_of_job job = JOB("dit-s", "parallel.tp=2 parallel.overlap=off", 2, 1);
	struct simulated m = {.job = &job, .config = config_of(&job), .skips = true};
	double whole;

	(void)state;
	gathers_of_step = 1 << 20;
	left_out = -1;
	simulate(&m);
	whole = m.s;
	assert_int_equal(gathers[0].n, gathers[1].n);
	assert_int_equal(gathers[0].n % 3, 0);
	gathers_of_step = gathers[0].n / 3;
	assert_in_range(gathers_of_step, 8, 1000);
	for (left_out = 0; left_out < gathers_of_step; left_out++) {
		simulate(&m);
		/* the least time of a collective on this machine is 6 us */
		if (!(m.s < whole - 5e-6 && m.s > whole - 100e-6))
			fail_msg("without all-gather %d of %d: %.3f us instead of %.3f", left_out, gathers_of_step,
				m.s * 1e6, whole * 1e6);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_left_out)};

	vfm_log_set_quiet(true);
	lists = mmap(NULL, MOST_RANKS * sizeof(*lists), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return lists == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
