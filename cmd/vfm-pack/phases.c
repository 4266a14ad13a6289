/* vfm-pack --phase: the plans of several training phases.
 *
 * The words before the first --phase apply to all phases, the words after a --phase to that phase.  Each phase is
 * parsed as a command line of its own: the common words, then its own. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "data/plan/phases.h"
#include "data/plan/plan.h"
#include "io/file.h"
#include "pack_cmd.h"

struct phase_part { /* of argv: a phase, or the common words */
	int first, n;
};

struct phase_work {
	struct pack_opts o;
	char **words; /* words[1..n_dirs]: its folders */
	int n_dirs;
};

/* Returns the index of the next word --phase from argv[at] on, or argc.  There is none after "--". */
static int next_phase(int argc, char **argv, int at)
{
	for (; at < argc; at++) {
		if (strcmp(argv[at], "--phase") == 0 || strncmp(argv[at], "--phase=", 8) == 0)
			return at;
		if (strcmp(argv[at], "--") == 0)
			return argc;
	}
	return argc;
}

bool pack_has_phases(int argc, char **argv)
{
	return next_phase(argc, argv, 1) < argc;
}

/* ---- options ---- */

static int check_phase_options(const struct phase_work *s, const char *out, struct vfm_err *err)
{
	TRY(vfm_phase_check_name(s->o.phase, err));
	if (!out)
		return vfm_fail(err, VFM_EUSAGE, "--phase: -o DIR is missing (where the plans go)");
	if (!s->o.out || strcmp(s->o.out, out) != 0)
		return vfm_fail(err, VFM_EUSAGE, "-o: all phases go to one folder");
	if (s->o.held_out_plan)
		return vfm_fail(err, VFM_EUSAGE,
			"--held-out-plan: with --phase, the held-out plans are DIR/NAME.held-out.jsonl");
	if (s->o.check)
		return vfm_fail(err, VFM_EUSAGE, "--check: not with --phase");
	if (pack_check(&s->o, s->n_dirs, s->words + 1, err) < 0)
		return vfm_err_context(err, "phase '%s'", s->o.phase);
	return 0;
}

/* Parses the phase of the words argv[own.first ..] after the common ones. */
static int parse_phase(struct phase_work *s, char **argv, const struct phase_part *common, const struct phase_part *own,
	struct vfm_err *err)
{
	int n = 1, rc;

	s->words = vfm_calloc((size_t)common->n + (size_t)own->n + 2, sizeof(*s->words));
	s->words[0] = argv[0];
	for (int i = 0; i < common->n; i++)
		s->words[n++] = argv[common->first + i];
	for (int i = 0; i < own->n; i++)
		s->words[n++] = argv[own->first + i];
	rc = pack_parse(&s->o, n, s->words, &s->n_dirs, err);
	return rc < 0 && s->o.phase ? vfm_err_context(err, "phase '%s'", s->o.phase) : rc;
}

/* ---- plans ---- */

/* Hashes the plan that was just written, and so checks it. */
static int hash_phase(const char *path, char sha[VFM_SHA256_HEX], struct vfm_err *err)
{
	struct vfm_plan *m = vfm_plan_open(path, err);
	int rc = m ? vfm_plan_sha256(m, sha, NULL, NULL, err) : err->code;

	vfm_plan_close(m);
	return rc;
}

/* Writes the plan of a phase and adds it to the list. */
static int make_phase(struct vfm_phases *list, const struct phase_work *s, struct vfm_err *err)
{
	const char *end = s->o.bin ? "bin" : "jsonl";
	char *name = vfm_strfmt("%s.%s", s->o.phase, end), *path = vfm_strfmt("%s/%s", s->o.out, name),
	     *held_name = vfm_strfmt("%s.held-out.%s", s->o.phase, end),
	     *held = vfm_strfmt("%s/%s", s->o.out, held_name);
	struct vfm_phase phase = {.name = s->o.phase, .plan = name};
	struct vfm_atomic file = {0};
	int64_t n_held;
	int rc;

	vfm_info("phase %s:", s->o.phase);
	TRY_OUT(vfm_atomic_open(&file, path, err));
	n_held = pack_make(
		&s->o, s->n_dirs, s->words + 1, &(struct pack_out){.f = file.f, .path = path, .held_out = held}, err);
	TRY_OUT(n_held < 0 ? (int)n_held : vfm_atomic_commit(&file, err));
	TRY_OUT(hash_phase(path, phase.sha256, err));
	if (n_held > 0)
		phase.held_out = held_name;
	rc = vfm_phases_add(list, &phase, err);
out:
	vfm_atomic_abort(&file);
	free(name);
	free(path);
	free(held_name);
	free(held);
	return rc < 0 ? vfm_err_context(err, "phase '%s'", s->o.phase) : 0;
}

static int make_phases(const struct phase_work *s, int n, struct vfm_err *err)
{
	struct vfm_phases list = {0};
	char *path = vfm_strfmt("%s/stages.json", s->o.out);
	int rc = vfm_mkdir_p(s->o.out, err);

	for (int i = 0; i < n && rc == 0; i++)
		rc = make_phase(&list, &s[i], err);
	if (rc == 0)
		rc = vfm_phases_save(&list, path, err);
	if (rc == 0)
		vfm_info("%s: %d phases", path, n);
	free(path);
	vfm_phases_release(&list);
	return rc;
}

/* Fails if two phases have one name, before anything is written. */
static int check_names(const struct phase_work *s, int n, struct vfm_err *err)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < i; k++)
			if (strcmp(s[i].o.phase, s[k].o.phase) == 0)
				return vfm_fail(err, VFM_EUSAGE, "two phases are named '%s'", s[i].o.phase);
	return 0;
}

int pack_phases(int argc, char **argv, struct vfm_err *err)
{
	const struct phase_part common = {.first = 1, .n = next_phase(argc, argv, 1) - 1};
	struct phase_work *s = vfm_calloc((size_t)argc, sizeof(*s));
	int n = 0, rc = 0;

	for (int at = common.first + common.n; at < argc && rc == 0; n++) {
		struct phase_part own = {.first = at, .n = next_phase(argc, argv, at + 1) - at};

		rc = parse_phase(&s[n], argv, &common, &own, err);
		if (rc == 0)
			rc = check_phase_options(&s[n], s[0].o.out, err);
		at += own.n;
	}
	if (rc == 0)
		rc = check_names(s, n, err);
	if (rc == 0)
		rc = make_phases(s, n, err);
	for (int i = 0; i < n; i++) {
		pack_opts_release(&s[i].o);
		free(s[i].words);
	}
	free(s);
	return rc;
}
