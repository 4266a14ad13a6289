/* caption - captions of clips from an outside model. */
#include <stdlib.h>

#include "encoder/exec/payload.h"
#include "io/opt.h"
#include "curate.h"
#include "encoder/exec/captioner.h"
#include "exec_stage.h"

#define DEFAULT_PROMPT "Describe this video in one paragraph."

struct caption {
	struct exec_stage model;
	struct vfm_captioner captioner;
};

static int caption_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct caption *c = ctx;

	(void)out;
	return vfm_captioner_run(&c->captioner, vfm_exec_slot(c->model.exec, worker), vfm_exec_hello(c->model.exec),
		&c->model.view, rec, err);
}

static int check_prompts(struct caption *c, const char *prompt, const char *file, struct vfm_err *err)
{
	if (prompt && file)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --prompt and --prompts");
	if (c->captioner.window < 0)
		return vfm_fail(err, VFM_EUSAGE, "--window: expected a number of frames");
	if (file)
		return vfm_captioner_prompts(&c->captioner, file, err);
	vfm_captioner_prompt(&c->captioner, prompt ? prompt : DEFAULT_PROMPT);
	return 0;
}

int curate_caption(int argc, char **argv, struct vfm_err *err)
{
	struct caption c = {.model = {.opts = VFM_EXEC_DEFAULTS, .timeout_s = 3600}};
	struct vfm_stage stage = {.name = "caption", .fn = caption_record, .ctx = &c};
	const char *prompt = NULL, *file = NULL;
	char *more = NULL;
	struct vfm_opt opts[] = {
		EXEC_STAGE_OPTS(&c.model),
		{VFM_OPT_TEXT, 0, "prompt", "TEXT", "what to ask (\"" DEFAULT_PROMPT "\")", &prompt},
		{VFM_OPT_STR, 0, "prompts", "FILE", "JSON {\"NAME\":\"TEXT\", ...}: a caption for each name", &file},
		{VFM_OPT_INT, 0, "window", "N", "a caption for every N frames, joined (default: the whole clip)",
			&c.captioner.window},
		{VFM_OPT_FLAG, 0, "overwrite", NULL, "replace captions that records have", &c.captioner.overwrite},
		VFM_TIMEOUT_OPT("give up on reading a clip after so long (default 3600)", &c.model.timeout_s),
		VFM_EXEC_OPTS(&c.model.opts),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate caption",
		.synopsis = "--exec CMD [OPTION ...] [FILE ...]",
		.summary = "caption clips with an outside model",
		.opts = opts,
		.stage = &exec_stage_traits,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	TRY_OUT(check_prompts(&c, prompt, file, err));
	more = vfm_captioner_text(&c.captioner);
	rc = exec_stage_run(&c.model, &stage, "caption", more, err);
out:
	vfm_captioner_release(&c.captioner);
	free(more);
	return rc;
}
