/* items.c - the prompts of vfm-sample. */
#include "items.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/mem.h"
#include "data/provenance.h"

static void add_item(struct items *s, json_t *rec, const char *caption)
{
	struct item *it;
	char id[32];

	vfm_grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v));
	it = &s->v[s->n];
	snprintf(id, sizeof(id), "sample-%06zu", s->n);
	json_object_set_new(rec, "v", json_integer(1));
	json_object_set_new(rec, "id", json_string(id));
	json_object_set_new(rec, "caption", json_string(caption));
	if (!json_object_get(rec, "negative") && *s->negative)
		json_object_set_new(rec, "negative", json_string(s->negative));
	*it = (struct item){.rec = rec,
		.caption = json_string_value(json_object_get(rec, "caption")),
		.negative = json_string_value(json_object_get(rec, "negative"))};
	it->negative = it->negative ? it->negative : "";
	it->path = s->out_dir ? vfm_strfmt("%s/%s.%s", s->out_dir, id, s->format) : vfm_strdup(s->out_file);
	s->n++;
}

static int read_prompts(struct items *s, const char *file, struct vfm_err *err)
{
	struct vfm_jsonl in = {0};
	json_t *rec;
	int rc;

	TRY(vfm_jsonl_open(&in, file, err));
	while ((rc = vfm_jsonl_next(&in, &rec, err)) == 1) {
		const char *caption = NULL, *other;

		if (vfm_provenance_is_header(rec)) {
			json_decref(rec);
			continue;
		}
		rc = vfm_json_str(rec, "", "caption", true, &caption, err);
		if (rc >= 0)
			rc = vfm_json_str(rec, "", "negative", false, &other, err);
		if (rc < 0) {
			vfm_err_context(err, "%s:%lld", in.name, (long long)in.line);
			json_decref(rec);
			break;
		}
		add_item(s, rec, caption);
	}
	vfm_jsonl_close(&in);
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

static int check_utf8(const char *opt, const char *text, struct vfm_err *err)
{
	json_t *s = json_string(text);

	json_decref(s);
	return s ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: not UTF-8", opt);
}

int items_collect(struct items *s, const struct vfm_strlist *prompts, const char *file, struct vfm_err *err)
{
	TRY(check_utf8("--negative", s->negative, err));
	for (int i = 0; i < prompts->n; i++) {
		TRY(check_utf8("--prompt", prompts->v[i], err));
		add_item(s, json_object(), prompts->v[i]);
	}
	if (file)
		TRY(read_prompts(s, file, err));
	if (s->n == 0)
		return vfm_fail(err, VFM_EUSAGE, "no prompt: give -p TEXT or --prompts FILE");
	if (s->out_file && s->n > 1)
		return vfm_fail(err, VFM_EUSAGE, "-o FILE is for a single prompt; there are %zu: give -d DIR", s->n);
	return 0;
}

int items_share(struct items *s, struct vfm_job *job, struct vfm_err *err)
{
	json_t *all = json_array(), *rec;
	char *text = NULL;
	size_t i;
	int rc;

	for (i = 0; i < s->n; i++)
		json_array_append(all, s->v[i].rec);
	if (job->world->rank == 0)
		text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	rc = vfm_job_broadcast(job, &text, err);
	if (rc == 0 && job->world->rank != 0) {
		all = json_loads(text ? text : "", 0, NULL);
		json_array_foreach(all, i, rec)
		{
			add_item(s, json_incref(rec), json_string_value(json_object_get(rec, "caption")));
		}
		json_decref(all);
	}
	free(text);
	return rc;
}

void items_release(struct items *s)
{
	for (size_t i = 0; i < s->n; i++) {
		json_decref(s->v[i].rec);
		free(s->v[i].path);
		free(s->v[i].why);
	}
	free(s->v);
	*s = (struct items){0};
}
