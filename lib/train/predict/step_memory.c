/* step_memory.c - runs a step on simulated ranks, and takes the peak of their memory. */
#include "train/predict/step_memory.h"

#include "base/log.h"
#include "device/cpu/cpu.h"
#include "train/predict/bench.h"
#include "train/predict/simulate.h"

/* Of which a process has addresses for many ranks. */
#define CAPACITY_UNKNOWN (INT64_C(1) << 39)

struct peak_count {
	const struct vfm_step_memory *m;
	int64_t *peak;
};

static int run_state(struct vfm_context *x, const struct vfm_step_memory *m, struct vfm_err *err)
{
	struct vfm_trainer *tr;

	vfm_dev_peak_reset(x->device.dev);
	tr = vfm_bench_trainer(x, m->config, err);
	vfm_trainer_free(tr);
	return tr ? 0 : err->code;
}

static int run_step(struct vfm_context *x, const struct vfm_step_memory *m, struct vfm_err *err)
{
	struct vfm_bench_step b = {.packs = m->packs * x->mesh.size[VFM_AX_DP], .host_bytes = m->host_bytes};
	struct vfm_bench_predicted predicted;
	struct vfm_bench_result r;
	struct vfm_pack_sums sums = {0};
	struct vfm_pack pack = {0};
	int rc;

	for (int i = 0; i < m->n; i++)
		vfm_synthetic_add_sums(
			&sums, m->sample[i].grid, m->sample[i].text_len, m->sample[i].id, &m->config->model);
	if (m->cp)
		TRY(vfm_mesh_add_views(&x->mesh, m->cp, err));
	rc = vfm_synthetic_shapes(&pack, m->sample, m->n, &m->config->model, err);
	pack.step_tokens = pack.tokens * b.packs;
	pack.cp = m->cp;
	vfm_bench_predict(&b, 1, &predicted);
	if (rc == 0)
		rc = vfm_bench_run_packs(x, m->config, &b, &pack, 1, &sums, &r, err);
	vfm_pack_release(&pack);
	return rc;
}

static int count_on_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	const struct peak_count *c = ctx;
	int64_t *peak;

	vfm_log_set_thread_silent(true);
	TRY(vfm_context_open(x, c->m->config, err));
	TRY(c->m->n ? run_step(x, c->m, err) : run_state(x, c->m, err));
	peak = &c->peak[x->mesh.coord[VFM_AX_PP]]; /* one simulated rank runs at a time */
	if (x->device.dev->mem_peak > *peak)
		*peak = x->device.dev->mem_peak;
	return 0;
}

static void set_memory_machine(struct vfm_machine *m, const struct vfm_step_memory *s)
{
	const struct vfm_dev *d = s->dev;

	vfm_machine_of_memory(m, d->async ? VFM_MACHINE_GPU : VFM_MACHINE_CPU,
		d->mem_total ? d->mem_total : CAPACITY_UNKNOWN, s->ranks);
	for (int i = 0; i < 2; i++) {
		struct vfm_cpu_copies c = vfm_cpu_copies_of(d, i ? VFM_BF16 : VFM_F32);

		m->copies[i] = (struct vfm_cpu_copy_rule){c.few, c.rows, c.columns, c.depth, c.bytes};
	}
}

int vfm_step_memory(const struct vfm_step_memory *m, int64_t *peak, struct vfm_err *err)
{
	struct peak_count c = {m, peak};
	struct vfm_machine machine;
	struct vfm_simulation s = {.config = m->config, .machine = &machine, .ranks = m->ranks, .retry = true};
	struct vfm_simulated how;
	int rc;

	set_memory_machine(&machine, m);
	for (int64_t i = 0; i < m->config->parallel.pp; i++)
		peak[i] = 0;
	rc = vfm_simulate(&s, count_on_rank, &c, &how, err);
	for (int64_t i = 0; how.beyond && i < m->config->parallel.pp; i++)
		peak[i] = INT64_MAX;
	return how.beyond ? 0 : rc;
}
