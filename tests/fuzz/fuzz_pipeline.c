/* The stages of a curation: any bytes; what is accepted are command lines that the verbs' parser accepts. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "curate/pipeline/pipeline.h"
#include "data/record/stage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int fuzz_verb(int argc, char **argv, struct vfm_err *err)
{
	static bool flag;
	static int64_t n, bytes, jobs;
	static double x;
	static const char *text, *exec, *done;
	struct vfm_strlist list = {0};
	const struct vfm_opt opts[] = {
		{VFM_OPT_FLAG, 0, "fast", NULL, "a flag", &flag},
		{VFM_OPT_INT, 'j', "jobs", "N", "an integer", &jobs},
		{VFM_OPT_INT, 0, "count", "N", "an integer", &n},
		{VFM_OPT_SIZE, 0, "bytes", "SIZE", "a size", &bytes},
		{VFM_OPT_NUM, 0, "rate", "X", "a number", &x},
		{VFM_OPT_STR, 0, "dir", "DIR", "a text", &text},
		{VFM_OPT_STR, 0, "exec", "CMD", "a child", &exec},
		{VFM_OPT_LIST, 0, "min", "KEY=X", "a list", &list},
		{VFM_OPT_STR, 0, "done", "FILE", "as all stages", &done},
		{0},
	};
	const struct vfm_stage_traits traits = {.children = (const char *const[]){"exec", NULL}};
	const struct vfm_cmd cmd = {.name = "fuzz", .synopsis = "", .summary = "", .opts = opts, .stage = &traits};
	int n_operands, rc = vfm_opt_parse(&cmd, argc, argv, &n_operands, err);

	vfm_strlist_release(&list);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct vfm_verb verbs[] = {{"probe", "", fuzz_verb}, {"score", "", fuzz_verb}, {0}};
	static struct vfm_curation p;
	struct vfm_err err = {0}, why;

	if (vfm_curation_parse(&p, (const char *)data, size, "fuzz", verbs, &err) == 0) {
		for (int i = 0; i < p.n; i++) {
			/* A number out of range and a size in words are the verb's to refuse; an option is not. */
			if (p.stage[i].verb->run(p.stage[i].argc, p.stage[i].argv, &why) < 0 &&
				!strncmp(why.msg, "unknown", 7))
				abort();
			if (strlen(p.stage[i].identity) != VFM_SHA256_HEX - 1)
				abort();
		}
	} else if (!err.msg[0]) {
		abort();
	}
	vfm_curation_release(&p);
	return 0;
}
