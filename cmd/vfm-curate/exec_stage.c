/* exec_stage - the children of caption, score --exec, embed and split --exec. */
#include "exec_stage.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/par.h"
#include "encoder/exec/payload.h"
#include "io/json.h"

const struct vfm_stage_traits exec_stage_traits = {.children = (const char *const[]){"exec", NULL}};

int exec_stage_vector(const struct exec_stage *s, struct vfm_exec_slot *slot, const json_t *rec, struct vfm_npy *npy,
	const void **data, struct vfm_err *err)
{
	json_t *request = vfm_outside_show(slot, &s->view, rec, err);

	return request ? vfm_outside_ask(slot, VFM_EXEC_EMBED, request, (int64_t[]){0}, npy, data, err) : err->code;
}

static int check_view(struct exec_stage *s, struct vfm_err *err)
{
	struct vfm_exec_input *in = &s->view.input;

	*in = vfm_exec_hello(s->exec)->input;
	if (s->more_ops & ~vfm_exec_hello(s->exec)->ops)
		return vfm_fail(err, VFM_EUSAGE, "--exec: '%s' lacks '%s'", vfm_exec_hello(s->exec)->name,
			vfm_exec_op_name(s->more_ops & ~vfm_exec_hello(s->exec)->ops));
	if ((s->frames || s->fps > 0) && in->clip)
		return vfm_fail(
			err, VFM_EUSAGE, "--frames, --fps: '%s' reads the files itself", vfm_exec_hello(s->exec)->name);
	if (s->frames) {
		in->frames = s->frames;
		in->fps = 0;
		in->max_frames = 0;
	} else if (s->fps > 0) {
		in->frames = 0;
		in->fps = s->fps;
	}
	return 0;
}

/* Returns the view of a clip for the child, as text.  It changes the results, also if the hello requests it.  The
 * caller frees it. */
static char *describe_view(const struct exec_stage *s)
{
	const struct vfm_exec_input *in = &s->view.input;
	char fps[VFM_REAL_TEXT];

	if (s->shows_nothing)
		return vfm_strdup("input text");
	if (s->shows_windows) {
		const struct vfm_exec_windows *w = &vfm_exec_hello(s->exec)->shots;

		return vfm_strfmt("input windows %lld margin %lld size %lldx%lld", (long long)w->frames,
			(long long)w->margin, (long long)w->width, (long long)w->height);
	}
	if (in->clip)
		return vfm_strdup("input clip");
	return vfm_strfmt("input frames %lld fps %s max-frames %lld size %dx%d fit %s", (long long)in->frames,
		vfm_real_text(fps, in->fps), (long long)in->max_frames, in->width, in->height,
		vfm_exec_fit_names[in->fit]);
}

int exec_stage_run(
	struct exec_stage *s, struct vfm_stage *stage, const char *capability, const char *more, struct vfm_err *err)
{
	const int cpus = vfm_par_threads();
	struct vfm_encoder_id model;
	char *options = NULL, *view = NULL;
	json_t *used = NULL;
	int rc;

	if (!s->command)
		return vfm_fail(err, VFM_EUSAGE, "--exec CMD is missing: the model");
	if (s->frames < 0 || s->frames > 65536 || s->fps < 0 || s->fps > 1000 || (s->frames && s->fps > 0))
		return vfm_fail(err, VFM_EUSAGE, "expected one of --frames N, 1 to 65536, and --fps X, up to 1000");
	s->opts.command = s->command;
	s->opts.capability = capability;
	s->opts.children = stage->opts.jobs ? stage->opts.jobs : 1;
	TRY_OUT(vfm_exec_open(&s->exec, &s->opts, err));
	TRY_OUT(check_view(s, err));
	stage->threads =
		vfm_exec_threads(s->exec, s->shows_nothing || (s->view.input.clip && !s->shows_windows) ? 1 : cpus);
	vfm_exec_make_slots(s->exec, stage->threads);
	s->view.timeout_s = s->timeout_s;
	s->view.threads = 1;
	model = vfm_outside_id(vfm_exec_hello(s->exec));
	stage->models = used = vfm_encoder_id_json(&model);
	view = describe_view(s);
	stage->options = options = vfm_strfmt("%s%s%s", view, more ? " " : "", more ? more : "");
	rc = vfm_stage_run(stage, NULL, err);
out:
	vfm_exec_close(s->exec);
	json_decref(used);
	free(options);
	free(view);
	return rc;
}
