/* vfm-pack - shard indexes -> a sequence-packing plan. */
#include "pack_cmd.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "data/plan/plan.h"

static int check_plan_file(const char *path, struct vfm_err *err)
{
	struct vfm_plan *m = vfm_plan_open(path, err);
	struct vfm_plan_step step = {0};
	int64_t tokens = 0, steps;
	char hex[VFM_SHA256_HEX];
	int rc = 0;

	if (!m)
		return err->code;
	steps = vfm_plan_header(m)->steps;
	for (int64_t s = 0; rc >= 0 && s < steps; s++) {
		rc = vfm_plan_step(m, s, &step, err);
		tokens += rc >= 0 ? step.tokens : 0;
	}
	if (rc >= 0)
		rc = vfm_plan_sha256(m, hex, NULL, NULL, err);
	if (rc >= 0)
		vfm_info("'%s': %lld steps, %lld tokens, sha256 %s, all well", path, (long long)steps,
			(long long)tokens, hex);
	vfm_plan_step_release(&step);
	vfm_plan_close(m);
	return rc;
}

static int pack(const struct pack_opts *opt, int n, char **dirs, struct vfm_err *err)
{
	const struct pack_out out = {.f = stdout, .held_out = opt->held_out_plan};
	int64_t rc;

	if (opt->out)
		return vfm_fail(err, VFM_EUSAGE, "-o: it needs --phase; one plan goes to standard output");
	rc = pack_make(opt, n, dirs, &out, err);
	return rc < 0 ? (int)rc : 0;
}

/* A verb in the place of the first operand; a folder of that name is ./show. */
static const struct vfm_verb *verb_of(int argc, char **argv)
{
	static const struct vfm_verb verbs[] = {
		{"show", "the packs of a step", pack_show},
		{"stats", "the mix, fill and balance of a plan", pack_stats},
	};

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (argc > 1 && !strcmp(argv[1], verbs[i].name))
			return &verbs[i];
	return NULL;
}

int main(int argc, char **argv)
{
	const struct vfm_verb *verb = verb_of(argc, argv);
	struct vfm_err err = {0};
	struct pack_opts opt = {0};
	int n = 0, rc;

	vfm_cmd_init(argv[0]);
	if (verb) {
		rc = verb->run(argc - 1, argv + 1, &err);
	} else if (pack_has_phases(argc, argv)) {
		rc = pack_phases(argc, argv, &err);
	} else {
		rc = pack_parse(&opt, argc, argv, &n, &err);
		if (rc == 0)
			rc = opt.check ? check_plan_file(opt.check, &err) : pack(&opt, n, argv + 1, &err);
	}
	pack_opts_release(&opt);
	return vfm_cmd_exit(rc == VFM_OPT_DONE ? 0 : rc, &err);
}
