/* meshes - checks that results do not depend on the layout: compares every row of a list with a single process.
 *
 *	meshes [-k WORDS] [--fault NAME] [--device NAME] [--comm NAME] [-o FORMAT] LIST
 *
 * A list has lines of these kinds:
 *	model NAME KEY=VALUE ...                   a model, by keys of the configuration
 *	group NAME MODEL[,MODEL ...]               a name for several models in the following rows
 *	NAME[,NAME ...] RANKS KEY=VALUE ...    a row per model: a key without a section is one of `parallel`, or
 *	                                       recompute, dtype; nodes=N puts the ranks on N synthetic nodes
 *	fault NAME OP GROUP CALL               see fault.c; GROUP is the name of the group in the mesh
 *	expect FAULT NAME RANKS KEY=VALUE ...  a row that must fail with this fault
 *
 * The single process computes on the CPU.  Runs the rows or, with --faults, the rows that must fail.  Exits with status
 *0 if all results are as expected.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"
#include "io/file.h"
#include "io/opt.h"
#include "io/table.h"
#include "meshes.h"

enum { MAX_MODELS = 32, MAX_GROUPS = 8, MAX_ROWS = 2048, MAX_FAULTS = 64, ROW_TIMEOUT_S = 120 };

static const char *device = "cpu";
static const double loss_tol = 1e-5, grad_tol = 1e-4, internode_loss_tol = 1e-3, internode_tol = 1e-2, bf16_tol = 2e-2,
		    residual_tol = 4e-2, fp8_tol = 0.15;

struct model {
	const char *name, *key[MAX_KEYS];
	int n_keys;
};

struct group {
	const char *name, *models;
};

struct list {
	struct group group[MAX_GROUPS];
	struct model model[MAX_MODELS];
	struct fault fault[MAX_FAULTS];
	struct row row[MAX_ROWS];
	const char *expect[MAX_ROWS]; /* the fault with which row i must fail; NULL: row i must pass */
	int n_models, n_groups, n_faults, n_rows;
	struct vfm_arena arena;
};

/* ---- the list ---- */

static int bad_line(struct vfm_err *err, const char *file, int line, const char *why)
{
	return vfm_fail(err, VFM_EUSAGE, "%s:%d: %s", file, line, why);
}

/* Returns the models of a group, or the name itself if it is not a group. */
static char *expand_models(struct list *l, const char *name)
{
	for (int i = 0; i < l->n_groups; i++)
		if (!strcmp(l->group[i].name, name))
			name = l->group[i].models;
	return vfm_arena_strdup(&l->arena, name);
}

static int parse_row(struct list *l, char **w, int n, int line, const char *text, const char *expect)
{
	char *save = NULL;
	int64_t ranks;

	if (n < 2 || n - 2 > MAX_KEYS || vfm_parse_i64(w[1], 1, MAX_RANKS, &ranks, NULL) < 0)
		return -1;
	for (char *m = strtok_r(expand_models(l, w[0]), ",", &save); m; m = strtok_r(NULL, ",", &save)) {
		struct row *r = &l->row[l->n_rows];

		if (l->n_rows == MAX_ROWS)
			return -1;
		*r = (struct row){.model = m, .ranks = (int)ranks, .nodes = 1, .text = text, .line = line};
		for (int i = 2; i < n; i++) {
			int64_t nodes;

			if (strncmp(w[i], "nodes=", 6) != 0) {
				r->key[r->n_keys++] = w[i];
				continue;
			}
			if (vfm_parse_i64(w[i] + 6, 1, ranks, &nodes, NULL) < 0)
				return -1;
			r->nodes = (int)nodes;
		}
		l->expect[l->n_rows++] = expect;
	}
	return 0;
}

static int parse_fault(struct list *l, char **w, int n)
{
	struct fault *f = &l->fault[l->n_faults];

	if (n != 5 || l->n_faults == MAX_FAULTS || vfm_parse_i64(w[4], -1, 1 << 20, &f->call, NULL) < 0)
		return -1;
	f->name = w[1];
	f->op = w[2];
	f->group = w[3];
	l->n_faults++;
	return 0;
}

static int parse_line(struct list *l, char *s, int line)
{
	char *w[MAX_KEYS + 4], *save = NULL, *keys;
	int n = 0, skip;

	if (strchr(s, '#'))
		*strchr(s, '#') = 0;
	s += strspn(s, " \t");
	keys = vfm_arena_strdup(&l->arena, s);
	for (char *p = strtok_r(s, " \t", &save); p && n < MAX_KEYS + 4; p = strtok_r(NULL, " \t", &save))
		w[n++] = vfm_arena_strdup(&l->arena, p);
	if (!n)
		return 0;
	if (!strcmp(w[0], "fault"))
		return parse_fault(l, w, n);
	if (!strcmp(w[0], "model") && n >= 2 && l->n_models < MAX_MODELS) {
		struct model *m = &l->model[l->n_models++];

		m->name = w[1];
		for (int i = 2; i < n; i++)
			m->key[m->n_keys++] = w[i];
		return 0;
	}
	if (!strcmp(w[0], "group") && n == 3 && l->n_groups < MAX_GROUPS) {
		l->group[l->n_groups++] = (struct group){w[1], w[2]};
		return 0;
	}
	skip = !strcmp(w[0], "expect") ? 2 : 0;
	if (n < skip + 2)
		return -1;
	for (int i = 0; i < skip + 2; i++) { /* the text after the number of ranks */
		keys += strcspn(keys, " \t");
		keys += strspn(keys, " \t");
	}
	return parse_row(l, w + skip, n - skip, line, keys, skip ? w[1] : NULL);
}

static int read_list(struct list *l, const char *path, struct vfm_err *err)
{
	char *text;
	size_t len;
	int line = 0, rc = 0;

	TRY(vfm_read_file(path, 1 << 20, &text, &len, err));
	for (char *s = text, *end; s && *s && !rc; s = end) {
		end = strchr(s, '\n');
		if (end)
			*end++ = 0;
		line++;
		if (parse_line(l, s, line) < 0)
			rc = bad_line(err, path, line, "neither a model, a group, a fault nor a row");
	}
	free(text);
	return rc;
}

static int set_key(struct vfm_config *c, const char *k, struct vfm_err *err)
{
	bool train = !strncmp(k, "recompute=", 10) || !strncmp(k, "dtype=", 6),
	     full = strcspn(k, ".") < strcspn(k, "=");
	char *s = vfm_strfmt("%s%s%s", full ? "" : train ? "train." : "parallel.", k, strchr(k, '=') ? "" : "=true");
	int rc = vfm_config_set(c, s, err);

	free(s);
	return rc;
}

static int configure(const struct list *l, const struct row *r, bool single, struct vfm_config *c, struct vfm_err *err)
{
	const struct model *m = NULL;

	for (int i = 0; i < l->n_models; i++)
		if (!strcmp(l->model[i].name, r->model))
			m = &l->model[i];
	if (!m)
		return vfm_fail(err, VFM_EUSAGE, "line %d: no model '%s'", r->line, r->model);
	vfm_config_defaults(c);
	c->train.lr = 1e-3;
	c->train.warmup_steps = 0;
	c->train.seed = 7;
	for (int i = 0; i < m->n_keys; i++)
		TRY(set_key(c, m->key[i], err));
	for (int i = 0; i < r->n_keys; i++)
		TRY(set_key(c, r->key[i], err));
	TRY(vfm_config_check(c, err));
	if (single) {
		vfm_parallel_defaults(&c->parallel);
		c->train.recompute = 0;
	}
	return vfm_parallel_check(&c->parallel, &c->model, single ? 1 : r->ranks, err);
}

/* ---- processes ---- */

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int wait_for(pid_t pid)
{
	double t0 = vfm_now();
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (vfm_now() - t0 > ROW_TIMEOUT_S) {
			kill(-pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		usleep(2000);
	}
	return status;
}

/* Runs the model of the row with the same dtype and packs in a single process. */
static struct ref *make_ref(const struct list *l, const struct row *r)
{
	struct ref *ref = shared(sizeof(*ref) + (size_t)MAX_FLOATS * sizeof(float));
	struct vfm_err err = {0};
	struct vfm_config c;
	pid_t pid;

	if (!ref)
		return NULL;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		if (configure(l, r, true, &c, &err) < 0 || run_single(&c, ref, &err) < 0)
			snprintf(ref->why, sizeof(ref->why), "%s", err.msg);
		else
			ref->ok = true;
		_exit(0);
	}
	if (pid > 0)
		wait_for(pid);
	if (!ref->ok && !ref->why[0])
		snprintf(ref->why, sizeof(ref->why), "the single process died");
	return ref;
}

/* Runs in a separate process: launches the ranks and runs as each of them. */
static void run_ranks_of_row(
	const struct list *l, const struct row *r, const struct fault *f, const struct ref *ref, struct found *found)
{
	struct vfm_launch launch = {0};
	struct vfm_err err = {0};
	struct vfm_config c;
	int rc = configure(l, r, false, &c, &err);

	if (rc == 0)
		rc = vfm_launch_init(&launch, r->ranks, &err);
	if (rc == 1)
		_exit(launch.status);
	if (rc == 0)
		rc = run_rank(&c, device, &launch, r->nodes, f, ref, &found[launch.rank], &err);
	if (rc < 0)
		snprintf(found[launch.rank].why, sizeof(found[launch.rank].why), "%s", err.msg);
	else
		found[launch.rank].done = true;
	if (launch.t)
		vfm_launch_end(&launch);
	_exit(rc < 0 ? -rc : 0);
}

struct verdict {
	bool ran, ok;
	char why[VFM_ERR_MAX + 64];
	double loss, grad, norm, time_s;
	const char *worst;
};

static bool has_key(const struct row *r, const char *key)
{
	for (int i = 0; i < r->n_keys; i++)
		if (!strcmp(r->key[i], key))
			return true;
	return false;
}

static double bf16_tol_of(const struct row *r)
{
	if (has_key(r, "train.fp8=delayed") || has_key(r, "train.fp8=current"))
		return fp8_tol;
	return has_key(r, "train.residual=fp32") ? bf16_tol : residual_tol;
}

/* bf16 rounds every value to 1/256.  Single elements therefore vary, and the norm of a gradient is compared instead.
 * e5m2 rounds to 1/8.  Sums over tp or cp may differ in the last bit, so some elements round the other way, and the
 * differences accumulate in the backward.  Models of this size differ by 0.08 from one process by norm.  fp8 itself
 * differs by 0.15 from bf16 on one process, and by 0.13 to 0.16 with tp and cp. */
static void compare_row(const struct row *r, const struct ref *ref, const struct found *f, struct verdict *v)
{
	bool bf16 = has_key(r, "dtype=bf16");
	bool internode = has_key(r, "grad_reduce=bf16_internode");
	double l_tol = bf16 ? bf16_tol
		: internode ? internode_loss_tol
			    : loss_tol,
	       g_tol = bf16 ? bf16_tol_of(r)
		: internode ? internode_tol
			    : grad_tol;

	for (int s = 0; s < STEPS; s++)
		for (int k = 0; k < r->ranks; k++) {
			double d = fabs(f[k].loss[s] - ref->loss[s]) / fmax(1, fabs(ref->loss[s]));

			v->loss = d <= v->loss ? v->loss : isnan(d) ? INFINITY : d;
		}
	for (int i = 0; i < ref->n; i++) {
		double max = 0, sq = 0, a, b;
		int64_t covered = 0;

		for (int k = 0; k < r->ranks; k++) {
			max = fmax(max, f[k].t[i].max_diff);
			sq += f[k].t[i].sq_diff;
			covered += f[k].t[i].covered;
		}
		/* A gradient that is zero up to rounding has no useful scale of its own. */
		a = max / fmax(ref->t[i].max, 1e-5 * ref->max);
		b = sqrt(sq) / fmax(ref->t[i].norm, 1e-5 * ref->max);
		if (covered != ref->t[i].n) {
			snprintf(v->why, sizeof(v->why), "%s: the ranks own %lld of %lld elements", ref->t[i].name,
				(long long)covered, (long long)ref->t[i].n);
			return;
		}
		if (bf16 ? !(b <= v->norm) : !(fmax(a, b) <= fmax(v->grad, v->norm)))
			v->worst = ref->t[i].name;
		v->grad = a <= v->grad ? v->grad : a;
		v->norm = b <= v->norm ? v->norm : b;
	}
	v->ok = v->loss <= l_tol && (bf16 || v->grad <= g_tol) && v->norm <= g_tol;
	if (!v->ok)
		snprintf(v->why, sizeof(v->why), "beyond %g (loss), %g (gradients)", l_tol, g_tol);
}

static void run_row(
	const struct list *l, const struct row *r, const struct fault *f, const struct ref *ref, struct verdict *v)
{
	struct found *found = shared((size_t)r->ranks * sizeof(*found));
	double t0 = vfm_now();
	int status;
	pid_t pid;

	*v = (struct verdict){0};
	if (!found)
		return;
	comm_prepare();
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		run_ranks_of_row(l, r, f, ref, found);
	}
	status = pid > 0 ? wait_for(pid) : -1;
	v->time_s = vfm_now() - t0;
	v->ran = status == 0;
	for (int k = 0; k < r->ranks; k++) {
		v->ran = v->ran && found[k].done;
		if (found[k].why[0] && !v->why[0])
			snprintf(v->why, sizeof(v->why), "rank %d: %s", k, found[k].why);
	}
	if (v->ran)
		compare_row(r, ref, found, v);
	else if (!v->why[0])
		snprintf(v->why, sizeof(v->why), status == -1 ? "hangs" : "died (status 0x%x)", status);
	munmap(found, (size_t)r->ranks * sizeof(*found));
}

/* ---- the report ---- */

struct cache { /* a reference per model and dtype */
	const char *model;
	int sort; /* the arithmetic that a reference must share with the row */
	struct ref *ref;
};

enum { N_SORTS = 8 };

static const struct ref *ref_of(struct cache *c, const struct list *l, const struct row *r)
{
	static const char *const sorts[] = {"dtype=bf16", "train.residual=fp32", "train.fp8=current",
		"train.fp8=delayed", "train.fp8_history=2", "train.frozen_dtype=fp8", "train.frozen_dtype=int8",
		"train.frozen_dtype=nf4"};
	int sort = 0;

	for (int i = 0; i < N_SORTS; i++)
		sort |= has_key(r, sorts[i]) << i;
	for (; c->ref; c++)
		if (!strcmp(c->model, r->model) && c->sort == sort)
			return c->ref;
	*c = (struct cache){r->model, sort, make_ref(l, r)};
	return c->ref;
}

static bool wanted(const struct row *r, const char *words)
{
	char *line = vfm_strfmt("%s %d %s", r->model, r->ranks, r->text), *copy = vfm_strdup(words), *save = NULL;
	bool yes = true;

	for (char *w = strtok_r(copy, " ", &save); w && yes; w = strtok_r(NULL, " ", &save))
		yes = strstr(line, w) != NULL;
	free(line);
	free(copy);
	return yes;
}

static const struct fault *fault_of(const struct list *l, const char *name)
{
	for (int i = 0; i < l->n_faults; i++)
		if (!strcmp(l->fault[i].name, name))
			return &l->fault[i];
	return NULL;
}

static void put(struct vfm_table *t, const struct row *r, const char *fault, const struct verdict *v, bool good)
{
	vfm_table_row(t);
	vfm_table_str(t, "model", r->model);
	vfm_table_i64(t, "ranks", r->ranks);
	vfm_table_str(t, "mesh", r->text[0] ? r->text : "(one)");
	vfm_table_str(t, "fault", fault);
	vfm_table_f64(t, "loss", v->ran ? v->loss : (double)NAN);
	vfm_table_f64(t, "grad", v->ran ? v->grad : (double)NAN);
	vfm_table_f64(t, "norm", v->ran ? v->norm : (double)NAN);
	vfm_table_str(t, "worst", v->worst);
	vfm_table_f64(t, "time_s", v->time_s);
	vfm_table_str(t, "ok", good ? "ok" : "FAIL");
	vfm_table_str(t, "why", good ? NULL : v->why[0] ? v->why : "within the tolerance in spite of the fault");
}

static struct vfm_table *columns(bool faults)
{
	struct vfm_table *t = vfm_table_new(NULL);

	vfm_table_col(t, "model", "model", 0);
	vfm_table_col(t, "ranks", "ranks", 0);
	vfm_table_col(t, "mesh", "mesh", 0);
	vfm_table_col(t, "fault", faults ? "fault" : "", 0);
	vfm_table_col(t, "loss", "loss", -2);
	vfm_table_col(t, "grad", "gradient", -2);
	vfm_table_col(t, "norm", "by norm", -2);
	vfm_table_col(t, "worst", "worst in", 0);
	vfm_table_col(t, "time_s", "s", 2);
	vfm_table_col(t, "ok", "", 0);
	vfm_table_col(t, "why", "", 0);
	return t;
}

/* Runs the selected rows.  With a fault, a row passes if it completes with wrong numbers. */
static int run_list(const struct list *l, const char *words, int64_t max_ranks, bool faults, const char *one_fault,
	struct vfm_table *t, struct vfm_err *err)
{
	struct cache *cache = vfm_calloc(((size_t)l->n_models << N_SORTS) + 1, sizeof(*cache));
	int bad = 0, n = 0, rc = 0;
	double t0 = vfm_now();

	for (int i = 0; i < l->n_rows && !rc; i++) {
		const struct row *r = &l->row[i];
		const char *name = one_fault ? one_fault : l->expect[i];
		const struct fault *f = name ? fault_of(l, name) : NULL;
		const struct ref *ref;
		struct verdict v = {0};
		bool good;

		if ((!one_fault && faults != (l->expect[i] != NULL)) || r->ranks > max_ranks || !wanted(r, words))
			continue;
		if (name && !f)
			rc = vfm_fail(err, VFM_EUSAGE, "line %d: no fault '%s'", r->line, name);
		ref = rc ? NULL : ref_of(cache, l, r);
		if (!ref)
			break;
		if (ref->ok)
			run_row(l, r, f, ref, &v);
		else
			snprintf(v.why, sizeof(v.why), "the single process: %s", ref->why);
		good = f ? v.ran && !v.ok : v.ok;
		bad += !good;
		n++;
		put(t, r, name, &v, good);
		vfm_info("%-9s %2d  %-60s %s%s%s", r->model, r->ranks, r->text, good ? "ok" : "FAIL ",
			good ? "" : v.why,
			good              ? ""
				: v.worst ? v.worst
					  : "");
	}
	for (struct cache *c = cache; c->ref; c++)
		munmap(c->ref, sizeof(struct ref) + (size_t)MAX_FLOATS * sizeof(float));
	free(cache);
	vfm_table_note(t,
		"%d rows, %d failed, %.0f s; differences from one process: loss of %d steps, gradients of the first as "
		"max |a-b| / max |b|",
		n, bad, vfm_now() - t0, STEPS);
	if (!rc && !n)
		rc = vfm_fail(err, VFM_EUSAGE, "no rows");
	return rc ? rc : bad ? VFM_EINPUT : 0;
}

int main(int argc, char **argv)
{
	enum vfm_table_format fmt = VFM_TABLE_TEXT;
	const char *words = "", *fault = NULL;
	int64_t max_ranks = MAX_RANKS;
	bool faults = false;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'k', "words", "WORDS", "only rows that contain all of these", &words},
		{VFM_OPT_FLAG, 0, "faults", NULL, "run the rows that must fail", &faults},
		{VFM_OPT_STR, 0, "fault", "NAME", "inject this fault into all rows, which must then fail", &fault},
		{VFM_OPT_STR, 0, "device", "NAME", "where the ranks compute (cpu)", &device},
		{VFM_OPT_INT, 0, "max-ranks", "N", "only rows of at most so many ranks", &max_ranks},
		{VFM_OPT_STR, 0, "comm", "NAME", "what carries the groups: host, staging, nccl, shm (as VFM_COMM)",
			&mesh_comm},
		{VFM_OPT_NAME, 0, "format", VFM_TABLE_FORMATS, "how to print the table", &fmt},
		{0},
	};
	struct vfm_cmd cmd = {.name = "meshes",
		.synopsis = "[-k WORDS] [--faults | --fault NAME] [--device NAME] [--comm NAME] [--max-ranks N] [-o "
			    "FORMAT] LIST",
		.summary = "results do not depend on the layout",
		.opts = opts};
	struct list *l = vfm_calloc(1, sizeof(*l));
	struct vfm_table *t = NULL;
	struct vfm_err err = {0};
	int n, rc;

	vfm_cmd_init(argv[0]);
	setenv("OMP_NUM_THREADS", "1", 1);
	TRY_OUT(vfm_opt_parse(&cmd, argc, argv, &n, &err));
	if (rc == VFM_OPT_DONE)
		goto out;
	if (n != 1) {
		rc = vfm_fail(&err, VFM_EUSAGE, "expected one list (meshes -h)");
		goto out;
	}
	TRY_OUT(read_list(l, argv[1], &err));
	t = columns(faults || fault);
	rc = run_list(l, words, max_ranks, faults, fault, t, &err);
	if (rc == 0 || rc == VFM_EINPUT) {
		int printed = vfm_table_print(t, &(struct vfm_table_opts){.format = fmt}, stdout, &err);

		rc = printed < 0 ? printed : rc;
	}
out:
	vfm_table_free(t);
	vfm_arena_release(&l->arena);
	free(l);
	return vfm_cmd_exit(rc == VFM_OPT_DONE ? 0 : rc, &err);
}
