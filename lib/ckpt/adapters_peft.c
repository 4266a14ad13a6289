/* The scale of adapters by the rules of PEFT's LoraConfig, LoHaConfig and LoKrConfig. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "ckpt/adapters_impl.h"
#include "io/json.h"

enum { PEFT_ALPHA = 8, PEFT_RANK = 8, PATTERN_MAX = 512 }; /* PEFT's defaults of lora_alpha and r */

/* Keys without effect on the sum of weights and adapters: they name modules and tensors, or concern training.  The
 * tensors of bias and modules_to_save are in the file. */
static const char *const neutral_keys[] = {"peft_type", "task_type", "auto_mapping", "peft_version",
	"base_model_name_or_path", "revision", "inference_mode", "target_modules", "exclude_modules", "lora_dropout",
	"bias", "modules_to_save", "layers_to_transform", "layers_pattern", "megatron_config", "megatron_core",
	"loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config",
	"lora_bias", "rank_dropout", "module_dropout", "rank_dropout_scale", "use_effective_conv2d", "decompose_both",
	"decompose_factor", "init_weights", NULL};
static const char *const scale_keys[] = {"r", "lora_alpha", "alpha", "use_rslora", "use_dora", "rank_pattern",
	"alpha_pattern", "init_lora_weights", NULL};
static const char *const types[] = {"LORA", "LOHA", "LOKR", NULL};

static bool is_listed_key(const char *s, const char *const *list)
{
	while (*list && strcmp(*list, s) != 0)
		list++;
	return *list != NULL;
}

static bool is_unset(const json_t *v)
{
	return !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
		(json_is_string(v) && !json_string_length(v)) ||
		((json_is_array(v) || json_is_object(v)) && !json_array_size(v) && !json_object_size(v));
}

/* Returns whether the base model of the adapters is the published one: some initializations change its weights. */
static bool keeps_base(const json_t *init)
{
	static const char *const same[] = {"gaussian", "eva", "orthogonal", NULL};

	return !init || json_is_null(init) || json_is_boolean(init) ||
		(json_is_string(init) && is_listed_key(json_string_value(init), same));
}

static int check_keys(const struct ckpt_lora_rules *r, struct vfm_err *err)
{
	const json_t *type = json_object_get(r->config, "peft_type");
	const char *key;
	json_t *v;

	if (!json_is_object(r->config))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", r->where);
	if (!is_unset(type) && (!json_is_string(type) || !is_listed_key(json_string_value(type), types)))
		return vfm_fail(err, VFM_EUSAGE, "%s: peft_type '%s' is not supported, only LORA, LOHA and LOKR",
			r->where, json_is_string(type) ? json_string_value(type) : "?");
	if (!keeps_base(json_object_get(r->config, "init_lora_weights")))
		return vfm_fail(err, VFM_EUSAGE,
			"%s: init_lora_weights: these adapters belong to a base model whose weights the initialization "
			"changed, which is not supported",
			r->where);
	json_object_foreach(r->config, key, v)
	{
		if (!is_listed_key(key, neutral_keys) && !is_listed_key(key, scale_keys) && !is_unset(v))
			return vfm_fail(err, VFM_EUSAGE, "%s: %s is not supported", r->where, key);
	}
	return 0;
}

/* ---- patterns ---- */

/* Returns the POSIX expression of a Python one that matches the end of a name, or NULL if it has a construct that POSIX
 * lacks.  Repetition counts are refused, since their expansion takes any amount of memory. */
static char *posix_pattern(const char *python)
{
	struct vfm_buf b = {0};
	bool ok = *python && strlen(python) < PATTERN_MAX;

	vfm_buf_adds(&b, "^(.*\\.)?(");
	for (const char *p = python; *p && ok; p++) {
		if (*p == '\\' && p[1] == 'd') {
			vfm_buf_adds(&b, "[0-9]");
			p++;
		} else if (*p == '\\') {
			ok = p[1] && strchr(".wWsS-_^$*+?()[]|", p[1]);
			vfm_buf_add(&b, p++, 2);
		} else if (*p == '[') {
			size_t n = strcspn(p + 1, "]\\[");

			ok = n > 0 && p[1 + n] == ']';
			vfm_buf_add(&b, p, n + 2);
			p += n + 1;
		} else {
			ok = *p != '{' && !(*p == '(' && p[1] == '?');
			vfm_buf_add(&b, p, 1);
		}
	}
	vfm_buf_adds(&b, ")$");
	if (!ok)
		vfm_buf_release(&b);
	return b.data;
}

static int read_patterns(struct ckpt_lora_rules *r, const char *key, struct ckpt_lora_pattern **out, size_t *n,
	bool integer, struct vfm_err *err)
{
	json_t *o = json_object_get(r->config, key), *v;
	const char *name;

	if (is_unset(o))
		return 0;
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: %s: expected an object", r->where, key);
	*out = vfm_calloc(json_object_size(o), sizeof(**out));
	json_object_foreach(o, name, v)
	{
		struct ckpt_lora_pattern *p = &(*out)[*n];
		char *posix;
		int bad;

		*p = (struct ckpt_lora_pattern){.text = name, .value = json_number_value(v)};
		if (!(p->value > 0) || !isfinite(p->value) || (integer && !json_is_integer(v)))
			return vfm_fail(err, VFM_EUSAGE, "%s: %s.%s: expected a positive %s", r->where, key, name,
				integer ? "integer" : "number");
		posix = posix_pattern(name);
		bad = !posix || regcomp(&p->re, posix, REG_EXTENDED | REG_NOSUB);
		free(posix);
		if (bad)
			return vfm_fail(
				err, VFM_EUSAGE, "%s: %s: the pattern '%s' is not supported", r->where, key, name);
		(*n)++;
	}
	return 0;
}

static int read_switch(const struct ckpt_lora_rules *r, const char *key, bool *on, struct vfm_err *err)
{
	const json_t *v = json_object_get(r->config, key);

	if (!is_unset(v) && !json_is_true(v))
		return vfm_fail(err, VFM_EUSAGE, "%s: %s: expected true or false", r->where, key);
	*on = json_is_true(v);
	return 0;
}

int ckpt_lora_rules_read(struct ckpt_lora_rules *r, json_t *config, const char *where, struct vfm_err *err)
{
	const char *alpha;

	*r = (struct ckpt_lora_rules){
		.where = vfm_strdup(where), .alpha = PEFT_ALPHA, .config = config, .type = types[0]};
	TRY(check_keys(r, err));
	if (!is_unset(json_object_get(config, "peft_type")))
		r->type = json_string_value(json_object_get(config, "peft_type"));
	alpha = strcmp(r->type, types[0]) ? "alpha" : "lora_alpha";
	if (json_object_get(config, alpha[0] == 'a' ? "lora_alpha" : "alpha"))
		return vfm_fail(err, VFM_EUSAGE, "%s: the alpha of %s is the key %s", where, r->type, alpha);
	TRY(vfm_json_i64(config, where, "r", false, 1, INT32_MAX, &r->rank, err));
	TRY(vfm_json_f64(config, where, alpha, false, &r->alpha, err));
	if (!(r->alpha > 0) || !isfinite(r->alpha))
		return vfm_fail(err, VFM_EUSAGE, "%s: %s: expected a positive number", where, alpha);
	TRY(read_switch(r, "use_rslora", &r->root_rank, err));
	TRY(read_switch(r, "use_dora", &r->dora, err));
	TRY(read_patterns(r, "alpha_pattern", &r->alphas, &r->n_alphas, false, err));
	return read_patterns(r, "rank_pattern", &r->ranks, &r->n_ranks, true, err);
}

/* Returns the keys of one section, without its name, or NULL if there are none. */
static json_t *select_section(json_t *all, const char *section)
{
	size_t len = strlen(section);
	json_t *out = json_object(), *v;
	const char *key;

	json_object_foreach(all, key, v)
	{
		if (!strncmp(key, section, len) && !strchr(key + len, '.'))
			json_object_set(out, key + len, v);
	}
	if (json_object_size(out))
		return out;
	json_decref(out);
	return NULL;
}

int ckpt_lora_metadata(struct ckpt_lora_rules *r, const struct vfm_ckpt *from, const char *prefix, struct vfm_err *err)
{
	const char *const sections[] = {prefix, "transformer.", ""};
	json_t *all, *config = NULL;
	char *where;
	int rc = ckpt_read_meta(from, CKPT_META_LORA, &all, &where, err);

	if (all && !json_is_object(all))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	for (size_t i = 0; i < 3 && rc == 0 && all && !config; i++)
		config = select_section(all, sections[i]);
	if (config && r->where) {
		json_decref(config);
		rc = vfm_fail(err, VFM_EUSAGE, "%s and %s both give the scale of the adapters", where, r->where);
	} else if (config) {
		rc = ckpt_lora_rules_read(r, config, where, err);
	}
	json_decref(all);
	free(where);
	return rc;
}

/* Returns the value of the first pattern that matches the end of a layer's name, or `other`. */
static double match_pattern(struct ckpt_lora_pattern *p, size_t n, const char *layer, double other)
{
	for (size_t i = 0; i < n; i++)
		if (regexec(&p[i].re, layer, 0, NULL, 0) == 0) {
			p[i].used = true;
			return p[i].value;
		}
	return other;
}

int ckpt_lora_scale(struct ckpt_lora_rules *r, const char *kind, const char *layer, int64_t rank, double alpha,
	double *scale, struct vfm_err *err)
{
	double given = alpha > 0 && rank ? alpha : (double)rank, want = (double)rank;

	if (r->where && strcasecmp(kind, r->type) != 0)
		return vfm_fail(
			err, VFM_EUSAGE, "the adapter of '%s' is a %s, but %s says %s", layer, kind, r->where, r->type);
	if (r->where) {
		/* PEFT's LoKr has the scale of its configuration even if no matrix has a rank */
		want = match_pattern(r->ranks, r->n_ranks, layer, r->rank ? (double)r->rank : rank ? want : PEFT_RANK);
		given = match_pattern(r->alphas, r->n_alphas, layer, r->alpha);
	}
	if (rank && want != (double)rank)
		return vfm_fail(err, VFM_EUSAGE, "the adapter of '%s' has rank %lld, but %s says %.0f", layer,
			(long long)rank, r->where, want);
	if (r->where && alpha > 0 && alpha != given)
		return vfm_fail(err, VFM_EUSAGE, "the adapter of '%s' has a tensor alpha of %g, but %s says %g", layer,
			alpha, r->where, given);
	*scale = want > 0 ? given / (r->root_rank ? sqrt(want) : want) : 1;
	return 0;
}

void ckpt_lora_rules_warn(const struct ckpt_lora_rules *r)
{
	for (size_t i = 0; i < r->n_alphas; i++)
		if (!r->alphas[i].used)
			vfm_warn("%s: alpha_pattern: no adapter matches '%s'", r->where, r->alphas[i].text);
	for (size_t i = 0; i < r->n_ranks; i++)
		if (!r->ranks[i].used)
			vfm_warn("%s: rank_pattern: no adapter matches '%s'", r->where, r->ranks[i].text);
}

void ckpt_lora_rules_release(struct ckpt_lora_rules *r)
{
	for (size_t i = 0; i < r->n_alphas; i++)
		regfree(&r->alphas[i].re);
	for (size_t i = 0; i < r->n_ranks; i++)
		regfree(&r->ranks[i].re);
	free(r->alphas);
	free(r->ranks);
	json_decref(r->config);
	free(r->where);
	*r = (struct ckpt_lora_rules){0};
}
