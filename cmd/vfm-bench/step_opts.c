/* step_opts.c - parses the options of a synthetic step into a configuration and a sample grid. */
#include "step_opts.h"

#include <string.h>

#include "base/num.h"
#include "io/version.h"

static int parse_grid(const char *option, const char *text, int32_t out[3], struct vfm_err *err)
{
	char buf[64], *save = NULL, *part;
	int64_t v;
	int n = 0;

	if (strlen(text) >= sizeof(buf))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected T,H,W, got '%s'", option, text);
	strcpy(buf, text);
	for (part = strtok_r(buf, ",", &save); part && n < 3; part = strtok_r(NULL, ",", &save)) {
		TRY(vfm_parse_i64(part, 1, 4096, &v, err) < 0 ? vfm_err_context(err, "%s", option) : 0);
		out[n++] = (int32_t)v;
	}
	return n == 3 && !part ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: expected T,H,W, got '%s'", option, text);
}

static int read_step_config(const struct bench_step_opts *o, struct vfm_config *c, struct vfm_err *err)
{
	char set[64];

	vfm_config_defaults(c);
	c->train.ema_decay = 0;
	TRY(vfm_model_preset(o->preset, &c->model, err) < 0 ? vfm_err_context(err, "--model") : 0);
	if (o->hidden != VFM_UNSET) {
		c->model.hidden = o->hidden;
		c->model.ffn = 0;
	}
	if (o->layers != VFM_UNSET)
		c->model.layers = o->layers;
	if (o->heads != VFM_UNSET)
		c->model.heads = o->heads;
	if (o->text_dim != VFM_UNSET)
		c->model.text_dim = o->text_dim;
	snprintf(set, sizeof(set), "train.dtype=%s", o->dtype);
	TRY(vfm_bench_set(c, set, err));
	snprintf(set, sizeof(set), "train.recompute=%s", o->recompute);
	TRY(vfm_bench_set(c, set, err));
	for (int i = 0; i < o->sets.n; i++)
		TRY(vfm_bench_set(c, o->sets.v[i], err));
	return vfm_config_check(c, err);
}

int bench_step_parse(struct bench_step_opts *o, struct vfm_config *c, struct vfm_bench_step *b, struct vfm_err *err)
{
	TRY(read_step_config(o, c, err));
	vfm_strlist_release(&o->sets);
	b->samples = o->samples;
	b->text_len = o->text_len;
	b->packs = o->packs;
	TRY(parse_grid("--grid", o->grid, b->grid, err));
	if (o->second)
		TRY(parse_grid("--second-grid", o->second, b->second, err));
	return vfm_bench_check(b, err);
}

void bench_note_predicted(struct vfm_table *t, const char *machine)
{
	vfm_table_note(t, "predicted for the machine %s, not measured; vfm %s", machine, vfm_version());
}
