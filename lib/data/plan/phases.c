/* phases.c - reads and writes lists of phases, and finds one by name. */
#include "data/plan/phases.h"

#include <stdlib.h>
#include <string.h>

#include "io/json.h"

int vfm_phase_check_name(const char *name, struct vfm_err *err)
{
	static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
	size_t n = strlen(name);

	if (n < 1 || n > VFM_PHASE_NAME_MAX || strspn(name, valid) != n || name[0] == '-' || name[0] == '.')
		return vfm_fail(err, VFM_EUSAGE,
			"'%.80s' is no name of a phase: expected 1 to %d letters, digits, '-', '_' or '.', "
			"the first of them a letter, a digit or '_'",
			name, VFM_PHASE_NAME_MAX);
	return 0;
}

int vfm_phases_find(const struct vfm_phases *l, const char *name, size_t len)
{
	for (int i = 0; i < l->n; i++)
		if (strlen(l->v[i].name) == len && !memcmp(l->v[i].name, name, len))
			return i;
	return -1;
}

int vfm_phases_add(struct vfm_phases *l, const struct vfm_phase *s, struct vfm_err *err)
{
	struct vfm_phase copy = *s;

	TRY(vfm_phase_check_name(s->name, err));
	if (vfm_phases_find(l, s->name, strlen(s->name)) >= 0)
		return vfm_fail(err, VFM_EUSAGE, "two phases are named '%s'", s->name);
	if (l->n == VFM_PHASES_MAX)
		return vfm_fail(err, VFM_EUSAGE, "more than %d phases", VFM_PHASES_MAX);
	copy.name = vfm_arena_strdup(&l->mem, s->name);
	copy.plan = vfm_arena_strdup(&l->mem, s->plan);
	copy.held_out = s->held_out ? vfm_arena_strdup(&l->mem, s->held_out) : NULL;
	l->v = vfm_realloc(l->v, (size_t)l->n + 1, sizeof(*l->v));
	l->v[l->n++] = copy;
	return 0;
}

/* ---- reading ---- */

static char *resolve(const char *path, const char *dir)
{
	return path[0] == '/' || !dir[0] ? vfm_strdup(path) : vfm_strfmt("%s/%s", dir, path);
}

static int read_phase(struct vfm_phases *l, const json_t *o, int i, const char *dir, struct vfm_err *err)
{
	static const char *const keys[] = {"name", "plan", "sha256", "held_out", NULL};
	const char *sha = NULL, *plan = NULL, *held_out = NULL;
	struct vfm_phase s = {0};
	char where[32], *paths[2];
	int rc;

	snprintf(where, sizeof(where), "stages[%d]", i);
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	TRY(vfm_json_only_keys(o, where, keys, err));
	TRY(vfm_json_str(o, where, "name", true, &s.name, err));
	TRY(vfm_json_str(o, where, "plan", true, &plan, err));
	TRY(vfm_json_str(o, where, "sha256", true, &sha, err));
	TRY(vfm_json_str(o, where, "held_out", false, &held_out, err));
	if (!plan[0] || (held_out && !held_out[0]))
		return vfm_fail(err, VFM_EUSAGE, "%s.%s: expected a path", where, plan[0] ? "held_out" : "plan");
	if (strlen(sha) != VFM_SHA256_HEX - 1 || strspn(sha, "0123456789abcdef") != VFM_SHA256_HEX - 1)
		return vfm_fail(
			err, VFM_EUSAGE, "%s.sha256: expected %d hexadecimal digits", where, VFM_SHA256_HEX - 1);
	memcpy(s.sha256, sha, VFM_SHA256_HEX);
	s.plan = paths[0] = resolve(plan, dir);
	s.held_out = paths[1] = held_out ? resolve(held_out, dir) : NULL;
	rc = vfm_phases_add(l, &s, err);
	free(paths[0]);
	free(paths[1]);
	return rc < 0 ? vfm_err_context(err, "%s", where) : 0;
}

static int read_document(struct vfm_phases *l, const json_t *o, const char *dir, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "type", "stages", NULL};
	const json_t *list = json_object_get(o, "stages");
	const char *type = NULL;
	int64_t v;

	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "expected an object");
	TRY(vfm_json_str(o, "", "type", true, &type, err));
	if (strcmp(type, "vfm-stages") != 0)
		return vfm_fail(err, VFM_EUSAGE, "type: expected \"vfm-stages\", got \"%.40s\"", type);
	TRY(vfm_json_i64(o, "", "v", true, 1, 1, &v, err));
	TRY(vfm_json_only_keys(o, "", keys, err));
	if (!json_is_array(list) || json_array_size(list) == 0)
		return vfm_fail(err, VFM_EUSAGE, "stages: expected an array of phases");
	for (size_t i = 0; i < json_array_size(list); i++)
		TRY(read_phase(l, json_array_get(list, i), (int)i, dir, err));
	return 0;
}

int vfm_phases_load(struct vfm_phases *l, const char *path, struct vfm_err *err)
{
	json_t *o = vfm_json_load(path, 1 << 20, err);
	const char *slash = strrchr(path, '/');
	char *dir;
	int rc;

	if (!o)
		return err->code;
	dir = slash ? vfm_strfmt("%.*s", slash > path ? (int)(slash - path) : 1, path) : vfm_strdup("");
	rc = read_document(l, o, dir, err);
	free(dir);
	json_decref(o);
	return rc < 0 ? vfm_err_context(err, "'%s'", path) : 0;
}

/* ---- writing ---- */

int vfm_phases_save(const struct vfm_phases *l, const char *path, struct vfm_err *err)
{
	json_t *list = json_array(), *o = json_pack("{s:i,s:s,s:o}", "v", 1, "type", "vfm-stages", "stages", list);
	int rc;

	for (int i = 0; i < l->n; i++) {
		json_t *s = json_pack(
			"{s:s,s:s,s:s}", "name", l->v[i].name, "plan", l->v[i].plan, "sha256", l->v[i].sha256);

		if (l->v[i].held_out)
			json_object_set_new(s, "held_out", json_string(l->v[i].held_out));
		json_array_append_new(list, s);
	}
	rc = vfm_json_save(NULL, path, o, 2, err);
	json_decref(o);
	return rc;
}

void vfm_phases_release(struct vfm_phases *l)
{
	free(l->v);
	vfm_arena_release(&l->mem);
	*l = (struct vfm_phases){0};
}
