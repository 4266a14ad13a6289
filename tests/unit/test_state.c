/* Tests checkpoints of several ranks: any layout loads the checkpoint of any other; all ranks report a failure. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/mem.h"
#include "ckpt/save.h"
#include "device/open/open.h"
#include "io/file.h"
#include "net/nn/scales.h"
#include "ranks.h"
#include "train/step/state.h"

static char dir[] = "/tmp/test_state-XXXXXX";
static bool no_dir, big;
static int window, window_saved; /* length of the fp8 histories of the trainer and of the checkpoint; 0: none */

static struct vfm_trainer *trainer_open(struct vfm_mesh *mesh, struct vfm_device *d, const struct layout *lay,
	struct vfm_launch *l, struct vfm_comm **world)
{
	struct vfm_config c;
	struct vfm_trainer *tr;

	OK(vfm_comm_host_new(l, &(struct vfm_host_comm_opts){.timeout_s = 20}, world, &err));
	OK(vfm_device_open(d, "cpu", &err));
	OK(vfm_mesh_init(mesh, &lay->p, *world, d->dev, &err));
	vfm_log_set_quiet(true);
	vfm_config_defaults(&c);
	c.model.layers = 4, c.model.hidden = 64, c.model.heads = 4, c.model.channels = 3, c.model.text_dim = 10;
	c.model.hidden = big ? 256 : c.model.hidden;
	c.model.adaln_lora = 5;
	c.model.cross_attention = true;
	OK(vfm_config_check(&c, &err));
	c.parallel = lay->p;
	c.train.fp8 = window ? VFM_FP8_DELAYED : VFM_FP8_NONE;
	c.train.fp8_history = window;
	tr = vfm_trainer_new(&c, mesh, d->stream, &err);
	MUST(tr, "%s", err.msg);
	return tr;
}

/* Writes or checks all parts of the state: a distinct value for each (part, name, element). */
static void walk(struct vfm_trainer *tr, bool write, const char *who)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_optim *o = vfm_trainer_optim(tr);
	float *part[] = {ps->master, o->m.data, o->v.data, o->ema.data, NULL};

	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];
		struct vfm_owned own = vfm_param_owned(ps, p);
		struct vfm_runs runs = {0};

		if (own.a < own.b)
			vfm_runs_add_part(&runs, &p->part, own.a, own.b);
		for (size_t k = 0; k < runs.n; k++) {
			for (int64_t j = 0; j < 5 * runs.v[k].n; j++) {
				int64_t e = j / 5;
				float *at = (j % 5 == 4 ? own.g : part[j % 5] + own.at) + runs.v[k].to + e;
				float want = (float)contribution(0, 0, (int)(j % 5), p->name, runs.v[k].from + e);

				if (write)
					*at = want;
				else if (j % 5 < 4)
					MUST(*at == want, "%s: part %d of %s[%lld] is %g, not %g", who, (int)(j % 5),
						p->name, (long long)(runs.v[k].from + e), (double)*at, (double)want);
			}
		}
		vfm_runs_release(&runs);
	}
}

/* Writes or checks the histories: a distinct value for each (layer, tensor, steps ago), zero if not in the checkpoint.
 */
static void walk_histories(struct vfm_trainer *tr, bool write, const char *who)
{
	struct vfm_scales *s = vfm_trainer_params(tr)->scales;

	MUST(!s == !window && (!s || s->n > 0), "%s: histories", who);
	for (int64_t i = 0; s && i < s->n; i++)
		for (int k = 0; k < VFM_FP8_TENSORS; k++)
			for (int64_t ago = 0; ago < s->window; ago++) {
				float *at = (float *)s->p[i]->past->history[k].data + s->window - 1 - ago;
				float want = write || ago < window_saved
					? (float)fabs(contribution(0, 1, k, s->p[i]->name, ago))
					: 0;

				if (write)
					*at = want;
				else
					MUST(*at == want, "%s: tensor %d of %s, %lld steps ago: %g, not %g", who, k,
						s->p[i]->name, (long long)ago, (double)*at, (double)want);
			}
}

static void trainer_close(struct vfm_trainer *tr, struct vfm_mesh *mesh, struct vfm_device *d, struct vfm_comm *world,
	struct vfm_launch *l)
{
	vfm_trainer_free(tr);
	vfm_mesh_release(mesh);
	vfm_device_close(d);
	vfm_comm_free(world);
	vfm_launch_end(l);
}

static int save(struct vfm_launch *l, const void *arg)
{
	struct vfm_saver saver = {0};
	struct vfm_ckpt_spec spec = {.dir = no_dir ? "/dev/null/ckpt" : dir, .step = 7};
	struct vfm_mesh mesh;
	struct vfm_device d;
	struct vfm_comm *world;
	struct vfm_trainer *tr = trainer_open(&mesh, &d, arg, l, &world);
	int rc;

	walk(tr, true, "");
	walk_histories(tr, true, "");
	OK(vfm_saver_start(&saver, tr, &spec, &err));
	rc = vfm_saver_wait(&saver, &err);
	if (no_dir) { /* rank 0 fails; all ranks report it */
		MUST(rc == VFM_EENV && strstr(err.msg, "/dev/null"), "saving in /dev/null: %d %s", rc, err.msg);
	} else {
		OK(rc);
	}
	vfm_saver_release(&saver);
	trainer_close(tr, &mesh, &d, world, l);
	return 0;
}

/* Rank 1 cannot write all its data: the save fails and all ranks report the cause. */
static int save_with_full_disk(struct vfm_launch *l, const void *arg)
{
	struct vfm_saver saver = {0};
	struct vfm_ckpt_spec spec = {.dir = dir, .step = 8};
	struct vfm_mesh mesh;
	struct vfm_device d;
	struct vfm_comm *world;
	struct vfm_trainer *tr = trainer_open(&mesh, &d, arg, l, &world);

	signal(SIGXFSZ, SIG_IGN);
	if (l->rank == 1)
		MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096}) == 0, "setrlimit");
	OK(vfm_saver_start(&saver, tr, &spec, &err));
	MUST(vfm_saver_wait(&saver, &err) == VFM_EENV && strstr(err.msg, "rank 1: cannot save") &&
			strstr(err.msg, "File too large"),
		"rank %d: '%s'", l->rank, err.msg);
	vfm_saver_release(&saver);
	trainer_close(tr, &mesh, &d, world, l);
	return 0;
}

/* Returns the bytes that this process has read from files; 0 if the system does not report them. */
static int64_t bytes_read(void)
{
	FILE *f = fopen("/proc/self/io", "r");
	long long n = 0;

	if (f && fscanf(f, "rchar: %lld", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

/* Counts the waits of the host for the device. */
static const struct vfm_dev_table *uncounted;
static int waits;

static int count_stream(struct vfm_stream *s, struct vfm_err *e)
{
	waits++;
	return uncounted->stream_sync(s, e);
}

static int count_event(struct vfm_event *ev, struct vfm_err *e)
{
	waits++;
	return uncounted->event_sync(ev, e);
}

static int load(struct vfm_launch *l, const void *arg)
{
	static struct vfm_dev_table counted;
	const struct layout *lay = arg;
	struct vfm_mesh mesh;
	struct vfm_device d;
	struct vfm_comm *world;
	struct vfm_trainer *tr = trainer_open(&mesh, &d, lay, l, &world);
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_ckpt *c;
	int64_t before = bytes_read(), bytes;

	OK(vfm_ckpt_open(&c, dir, &err));
	uncounted = d.dev->t;
	counted = *uncounted;
	counted.stream_sync = count_stream;
	counted.event_sync = count_event;
	d.dev->t = &counted;
	OK(vfm_state_load(tr, c, &err));
	d.dev->t = uncounted;
	MUST(waits < 8, "%s: %d waits for %zu parameters", lay->name, waits, ps->n);
	bytes = bytes_read() - before;
	MUST(!big || bytes < c->bytes / l->size + c->bytes / 20 + (1 << 20), "rank %d read %lld bytes of %lld", l->rank,
		(long long)bytes, (long long)c->bytes);
	walk(tr, false, lay->name);
	walk_histories(tr, false, lay->name);
	for (size_t i = 0; i < ps->n; i++) { /* the compute copies match the masters */
		const struct vfm_param *p = ps->p[i];
		struct vfm_runs runs = {0};

		if (!p->var.v.data)
			continue;
		vfm_runs_add_part(&runs, &p->part, 0, p->n);
		for (size_t k = 0; k < runs.n; k++)
			for (int64_t j = 0; j < runs.v[k].n; j++)
				MUST(value_at(&p->var.v, runs.v[k].to + j) ==
						contribution(0, 0, 0, p->name, runs.v[k].from + j),
					"%s: weight of %s", lay->name, p->name);
		vfm_runs_release(&runs);
	}
	vfm_ckpt_close(c);
	trainer_close(tr, &mesh, &d, world, l);
	return 0;
}

static void test_checkpoints(void **state)
{
	static const struct layout chain[] = {
		{"one", P(1, 1, 1, 1, 1, 1, 1), VFM_F32},
		{"dp3", P(1, 1, 1, 3, 1, 1, 3), VFM_F32},
		{"tp2 pp2", P(2, 1, 2, 1, 1, 1, 1), VFM_F32},
		{"fsdp4", P(1, 2, 1, 2, 1, 1, 4, .fsdp = true), VFM_F32},
		{"cp2 tp2 pp2 distopt", P(2, 2, 2, 1, 1, 1, 2, .distopt = true), VFM_F32},
		{"fsdp4 hybrid", P(1, 1, 1, 4, 1, 1, 2, .fsdp = true), VFM_F32},
	};
	enum { N = sizeof(chain) / sizeof(chain[0]) };

	(void)state;
	assert_non_null(mkdtemp(dir));
	for (int i = 0; i < N; i++) {
		window = window_saved = i == 1 ? 0 : 3 + i;
		in_ranks(&chain[i], save);
		window = i == 3 ? 0 : 5;
		in_ranks(&chain[(i + 1) % N], load);
	}
	window = window_saved = 0;
	big = true; /* each rank reads only its part */
	in_ranks(&chain[3], save);
	in_ranks(&chain[3], load);
	big = false;
	in_ranks(&chain[4], save); /* replaces the checkpoint of this step */
	in_ranks(&chain[1], save_with_full_disk);
	in_ranks(&chain[2], load); /* the previous checkpoint is intact */
	no_dir = true;
	in_ranks(&chain[0], save);
	in_ranks(&chain[1], save);
	vfm_rm_rf(dir, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_checkpoints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
