/* Sampling from images: conditions, image rows and given first frames, on one rank and on several. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/philox.h"
#include "device/open/open.h"
#include "net/diffusion/sampler.h"
#include "ranks.h"

enum { N = 3, MAX_VALUES = 1 << 14 };

static const int32_t grid[N][3] = {{3, 2, 3}, {1, 3, 3}, {2, 1, 5}};

/* A model of every condition, and a request with one given frame, guided. */
struct job {
	struct vfm_device d;
	struct vfm_model_spec m;
	struct vfm_params ps;
	struct vfm_model *net;
	struct vfm_diffusion diffusion;
	struct vfm_sampler s;
	float text[8 * 8], cond[MAX_VALUES], image[MAX_VALUES], first[MAX_VALUES];
	const float *frames[N];
	struct vfm_sample_request r;
	int64_t values; /* of the result */
};

static void fill(float *x, int64_t n, uint64_t id)
{
	struct vfm_rng rng = vfm_rng_stream(3, 0, id, VFM_RNG_TEST);

	for (int64_t i = 0; i < n; i++)
		x[i] = vfm_rng_normal(&rng, (uint64_t)i);
}

static void fill_request(struct job *j)
{
	static const uint64_t id[N] = {4, 5, 6};
	static const int32_t cu_text[N + 1] = {0, 3, 3, 8};
	int64_t tokens = 0;

	for (int i = 0; i < N; i++)
		tokens += (int64_t)grid[i][0] * grid[i][1] * grid[i][2];
	fill(j->text, sizeof(j->text) / sizeof(float), 1);
	fill(j->cond, MAX_VALUES, 2);
	fill(j->image, MAX_VALUES, 3);
	fill(j->first, MAX_VALUES, 4);
	j->frames[0] = j->first;
	j->values = tokens * vfm_model_patch_dim(&j->m);
	j->r = (struct vfm_sample_request){.n = N,
		.id = id,
		.grid = grid,
		.text = j->text,
		.cu_text = cu_text,
		.cond = j->cond,
		.image = j->image,
		.first_frame = j->frames};
}

/* kind: of the solver; with unipc two of the four evaluations are guided. */
static void open_job(struct job *j, const struct vfm_mesh *mesh, const struct vfm_device *d, int kind)
{
	*j = (struct job){.d = *d};
	vfm_model_defaults(&j->m);
	snprintf(j->m.arch, sizeof(j->m.arch), "wan");
	j->m.layers = 2;
	j->m.hidden = 64;
	j->m.heads = 4;
	j->m.channels = 3;
	j->m.cond_channels = 5;
	j->m.image_dim = 12;
	j->m.image_len = 7;
	j->m.text_dim = 8;
	OK(vfm_model_check(&j->m, &err));
	vfm_diffusion_defaults(&j->diffusion);
	j->diffusion.kind = VFM_FLOW;
	j->diffusion.shift = 3;
	vfm_sampler_defaults(&j->s);
	j->s.solver.steps = 4;
	j->s.solver.kind = kind;
	if (kind == VFM_SOLVER_UNIPC) {
		j->s.cfg_interval[0] = 0.6;
		j->s.cfg_interval[1] = 0.95;
	}
	vfm_params_init(&j->ps, d->stream, mesh);
	j->net = vfm_model_new(&j->m, &j->ps);
	OK(vfm_params_alloc(&j->ps, VFM_F32, false, &err));
	OK(vfm_params_fill_dense(&j->ps, 9, &err));
	OK(vfm_params_refresh(&j->ps, &err));
	fill_request(j);
}

static void close_job(struct job *j)
{
	vfm_model_free(j->net);
	vfm_params_release(&j->ps);
}

static int sample(struct job *j, const struct vfm_mesh *mesh, float *out)
{
	struct vfm_sample_job job = {.model = &j->m,
		.diffusion = &j->diffusion,
		.net = j->net,
		.mesh = mesh,
		.stream = j->d.stream,
		.dtype = VFM_F32};

	return vfm_sampler_run(&j->s, &job, &j->r, out, &err);
}

/* Returns max |a - b| over n values. */
static double distance(const float *a, const float *b, int64_t n)
{
	double max = 0;

	for (int64_t i = 0; i < n; i++)
		max = fmax(max, fabs((double)a[i] - (double)b[i]));
	return max;
}

/* Changes one input value and checks the values [at, at + n) of the result, and that all but [from, to) stay. */
static void check_input(struct job *j, const float *base, float *value, int64_t at, int64_t n, int64_t from, int64_t to,
	const char *what)
{
	float *out = vfm_calloc(MAX_VALUES, sizeof(*out)), was = *value;

	*value += 1;
	OK(sample(j, vfm_mesh_one(), out));
	*value = was;
	MUST(distance(out + at, base + at, n) > 1e-4, "%s has no effect", what);
	MUST(distance(out, base, from) == 0, "%s affects other samples", what);
	MUST(distance(out + to, base + to, j->values - to) == 0, "%s affects other samples", what);
	free(out);
}

/* A given frame is part of the result, and only its sample sees it. */
static void check_inputs(struct job *j, const float *base)
{
	int64_t F = vfm_model_patch_dim(&j->m), first = 6 * F, end0 = 18 * F, end1 = 27 * F;

	MUST(memcmp(base, j->first, (size_t)first * sizeof(float)) == 0, "the given frame is not in the result");
	check_input(j, base, j->first, first, end0 - first, 0, end0, "the given frame");
	check_input(j, base, j->cond + 18 * vfm_model_cond_dim(&j->m), end0, end1 - end0, end0, end1, "the condition");
	check_input(j, base, j->image + j->m.image_len * j->m.image_dim, end0, end1 - end0, end0, end1, "an image row");
}

static void check_refusals(struct job *j)
{
	const struct vfm_sample_request r = j->r;
	float *out = vfm_calloc(MAX_VALUES, sizeof(*out));

	j->r.cond = NULL;
	MUST(sample(j, vfm_mesh_one(), out) == VFM_EUSAGE && strstr(err.msg, "model.cond_channels"), "%s", err.msg);
	j->r = r;
	j->r.image = NULL;
	MUST(sample(j, vfm_mesh_one(), out) == VFM_EUSAGE && strstr(err.msg, "model.image_len"), "%s", err.msg);
	j->r = r;
	j->frames[1] = j->first;
	MUST(sample(j, vfm_mesh_one(), out) == VFM_EUSAGE && strstr(err.msg, "leave none of its 1 to predict"), "%s",
		err.msg);
	j->frames[1] = NULL;
	j->diffusion.kind = VFM_EDM;
	MUST(sample(j, vfm_mesh_one(), out) == VFM_EUSAGE && strstr(err.msg, "flow"), "%s", err.msg);
	j->diffusion.kind = VFM_FLOW;
	free(out);
}

static int run_rank(struct vfm_launch *l, const void *arg)
{
	const struct layout *lay = arg;
	float *one = vfm_calloc(MAX_VALUES, sizeof(*one)), *many = vfm_calloc(MAX_VALUES, sizeof(*many));
	struct vfm_parallel p = lay->p;
	struct vfm_device d;
	struct vfm_comm *world;
	struct vfm_mesh mesh;
	struct job j;
	int rank = l->rank;

	vfm_par_set_threads(1);
	OK(vfm_comm_host_new(l, &(struct vfm_host_comm_opts){.timeout_s = 60}, &world, &err));
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_mesh_init(&mesh, &p, world, d.dev, &err));
	for (int kind = VFM_SOLVER_EULER; kind <= VFM_SOLVER_UNIPC; kind += VFM_SOLVER_UNIPC - VFM_SOLVER_EULER) {
		open_job(&j, vfm_mesh_one(), &d, kind);
		OK(sample(&j, vfm_mesh_one(), one));
		if (world_of(&lay->p) == 1) {
			check_inputs(&j, one);
			check_refusals(&j);
		}
		close_job(&j);
		open_job(&j, &mesh, &d, kind);
		OK(sample(&j, &mesh, many));
		MUST(distance(one, many, j.values) < 1e-5, "rank %d: differs by %g", rank,
			distance(one, many, j.values));
		close_job(&j);
	}
	vfm_mesh_release(&mesh);
	vfm_comm_free(world);
	vfm_device_close(&d);
	vfm_launch_end(l);
	free(one);
	free(many);
	return 0;
}

static void test_ranks(void **state)
{
	static const struct layout layouts[] = {
		{"one", P(1, 1, 1, 1, 1, 1, 0), VFM_F32},
		{"cp=2", P(1, 2, 1, 1, 1, 1, 0), VFM_F32},
		{"tp=2", P(2, 1, 1, 1, 1, 1, 0), VFM_F32},
		{"tp=2 cp=2", P(2, 2, 1, 1, 1, 1, 0), VFM_F32},
		{"cp=4", P(1, 4, 1, 1, 1, 1, 0), VFM_F32},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		in_ranks(&layouts[i], run_rank);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranks)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
