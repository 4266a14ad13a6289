#include "io/member.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/regular.h"
#include "io/tar.h"

/* Reads a decimal number without a leading zero.  Returns the text behind it, or NULL. */
static const char *parse_decimal(const char *s, uint64_t *out)
{
	if (!isdigit((unsigned char)*s) || (s[0] == '0' && isdigit((unsigned char)s[1])))
		return NULL;
	for (*out = 0; isdigit((unsigned char)*s); s++) {
		if (*out > (INT64_MAX - 9) / 10)
			return NULL;
		*out = *out * 10 + (uint64_t)(*s - '0');
	}
	return s;
}

bool vfm_member_parse(struct vfm_member_name *n, const char *name)
{
	struct vfm_member_name m;
	const char *at, *s;

	for (at = name; (at = strchr(at, '@')); at++) {
		s = at > name ? parse_decimal(at + 1, &m.offset) : NULL;
		if (s && *s == '+' && (s = parse_decimal(s + 1, &m.size)) && s[0] == '/' && s[1]) {
			m.tar_len = (size_t)(at - name);
			m.member = s + 1;
			if (n)
				*n = m;
			return true;
		}
	}
	return false;
}

char *vfm_member_name(const char *tar, uint64_t offset, uint64_t size, const char *member)
{
	return vfm_strfmt("%s@%" PRIu64 "+%" PRIu64 "/%s", tar, offset, size, member);
}

/* Finds the content of a member by the header at its offset. */
static int find_content(
	struct vfm_input *in, uint64_t tar_size, const struct vfm_member_name *n, const char *tar, struct vfm_err *err)
{
	struct vfm_tar_member *m = vfm_malloc(sizeof(*m));
	struct vfm_tar t;
	int rc;

	vfm_tar_init_fd(&t, in->fd, tar_size, tar);
	t.pos = n->offset;
	rc = vfm_tar_next(&t, m, err);
	if (rc == 0)
		rc = vfm_fail(err, VFM_EINPUT, "'%s' ends at byte %" PRIu64, tar, n->offset);
	else if (rc == 1 && (strcmp(m->name, n->member) != 0 || m->type != '0'))
		rc = vfm_fail(err, VFM_EINPUT, "byte %" PRIu64 " of '%s' begins '%.200s'", n->offset, tar, m->name);
	else if (rc == 1 && m->size != n->size)
		rc = vfm_fail(err, VFM_EINPUT, "'%.200s' in '%s' has %" PRIu64 " bytes", m->name, tar, m->size);
	in->at = m->data_offset;
	in->size = n->size;
	free(m);
	return rc < 0 ? rc : 0;
}

static int open_member(struct vfm_input *in, const char *name, const struct vfm_member_name *n, struct vfm_err *err)
{
	char *tar = vfm_strfmt("%.*s", (int)n->tar_len, name);
	uint64_t tar_size = 0;
	int rc = 0;

	in->fd = vfm_open_regular(tar, &tar_size, err);
	if (in->fd < 0) {
		rc = in->fd;
		vfm_err_context(err, "the tar of '%s'", name);
	} else if ((rc = find_content(in, tar_size, n, tar, err)) < 0) {
		vfm_err_context(err, "'%s': the tar was changed or truncated after it was indexed", name);
		close(in->fd);
		in->fd = -1;
	}
	free(tar);
	return rc;
}

int vfm_input_open(struct vfm_input *in, const char *name, struct vfm_err *err)
{
	struct vfm_member_name n;

	*in = (struct vfm_input){.fd = -1};
	if (vfm_member_parse(&n, name))
		return open_member(in, name, &n, err);
	in->fd = vfm_open_regular(name, &in->size, err);
	return in->fd < 0 ? in->fd : 0;
}
