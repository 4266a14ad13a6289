/* sampling.c - the list of items: adds, shares, opens and releases it. */
#include "train/sample/sampling.h"

#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "train/sample/sampling_impl.h"

/* ---- items ---- */

/* Returns the record of an item. */
static json_t *new_record(const struct vfm_sampling *s, const char *caption, const json_t *line)
{
	const json_t *own = json_object_get(line, "negative");
	const char *negative = s->o->prompt.negative;
	json_t *rec;
	char id[32];

	snprintf(id, sizeof(id), "sample-%06zu", s->n);
	rec = json_pack("{s:i,s:s,s:s}", "v", 1, "id", id, "caption", caption);
	if (line)
		json_object_set(rec, "prompt", (json_t *)(uintptr_t)line);
	if (own)
		json_object_set(rec, "negative", (json_t *)(uintptr_t)own);
	else if (*negative)
		json_object_set_new(rec, "negative", json_string(negative));
	return rec;
}

/* Takes the references to rec and path. */
static struct vfm_sample_item *add_item(struct vfm_sampling *s, json_t *rec, char *path)
{
	struct vfm_sample_item *it;
	struct vfm_err ignore;
	const char *negative = json_string_value(json_object_get(rec, "negative"));

	vfm_grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v));
	it = &s->v[s->n];
	*it = (struct vfm_sample_item){.rec = rec, .p = s->o->prompt, .noise = s->n, .path = path};
	s->n++;
	it->p.caption = json_string_value(json_object_get(rec, "caption"));
	vfm_prompt_apply(&it->p, json_object_get(rec, "prompt"), &ignore); /* the reader has checked it */
	it->p.negative = negative ? negative : "";
	return it;
}

struct vfm_sample_item *vfm_sampling_add(struct vfm_sampling *s, const char *caption, const json_t *line)
{
	return add_item(s, new_record(s, caption, line), NULL);
}

int vfm_sampling_share(struct vfm_sampling *s, struct vfm_err *err)
{
	json_t *all = json_array(), *one;
	char *text = NULL;
	size_t i;
	int rc;

	for (i = 0; i < s->n; i++)
		json_array_append_new(all, json_pack("[O,s]", s->v[i].rec, s->v[i].path));
	if (s->job->world->rank == 0)
		text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	rc = vfm_job_broadcast(s->job, &text, err);
	if (rc == 0 && s->job->world->rank != 0) {
		all = json_loads(text ? text : "", 0, NULL);
		json_array_foreach(all, i, one) add_item(
			s, json_incref(json_array_get(one, 0)), vfm_strdup(json_string_value(json_array_get(one, 1))));
		json_decref(all);
	}
	free(text);
	return rc;
}

/* ---- opening ---- */

/* Local. */
static int check_items(struct vfm_sampling *s, struct vfm_err *err)
{
	for (size_t i = 0; i < s->n; i++) {
		struct vfm_sampler sampler = sampling_sampler(s, &s->v[i]);

		if (vfm_sampler_check(&sampler, &s->c->diffusion, err) < 0)
			return vfm_err_context(err, "prompt %zu", i);
	}
	TRY(sampling_check_inputs(s, err));
	return sampling_open_encoders(s, err);
}

/* Encodes texts and the first picture before the network takes memory; batches with the same picture use it. */
static int encode_first(struct vfm_sampling *s, struct vfm_err *err)
{
	if (!s->o->in_training)
		TRY(sampling_encode_texts(s, err));
	TRY(sampling_load_picture(s, &s->v[0], err));
	vfm_encoder_unload(&s->encoders);
	return 0;
}

int vfm_sampling_open(struct vfm_sampling *s, struct vfm_err *err)
{
	TRY(vfm_job_agree(s->job, check_items(s, err), err));
	TRY(sampling_choose_encoders(s, err));
	return vfm_job_agree(s->job, s->leader && s->n ? encode_first(s, err) : 0, err);
}

int vfm_sampling_prepare(struct vfm_sampling *s, struct vfm_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < s->n && s->leader && rc >= 0; i++)
		rc = sampling_prepare_item(s, &s->v[i], err);
	sampling_release_picture(&s->picture);
	vfm_encoder_close(&s->encoders);
	return rc;
}

void vfm_sampling_release(struct vfm_sampling *s)
{
	for (size_t i = 0; i < s->n; i++) {
		struct vfm_sample_item *it = &s->v[i];

		sampling_release_inputs(&it->in);
		json_decref(it->rec);
		free(it->path);
		free(it->why);
	}
	free(s->v);
	sampling_release_picture(&s->picture);
	vfm_encoder_close(&s->encoders);
	vfm_buf_release(&s->records);
	json_decref(s->forced);
	free(s->passes);
	s->v = NULL;
	s->n = s->cap = 0;
	s->forced = NULL;
	s->passes = NULL;
}
