/* yaml.h - reads the YAML that configuration files of other programs consist of, as JSON.
 *
 * A subset of YAML 1.2 (yaml.org/spec/1.2.2): one document of block mappings and sequences, flow mappings and sequences
 * on one line, plain and quoted scalars on one line, and comments.  Plain scalars are null, booleans, numbers or
 * strings by the core schema.  Anchors, aliases, tags, block scalars (| and >), complex keys, scalars of several lines
 * and several documents are refused, as are equal keys of one mapping.
 */
#ifndef VFM_IO_YAML_H
#define VFM_IO_YAML_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"

/* Parses text [len]; name is for messages.  Returns a new reference; an empty document is null.  NULL: VFM_EUSAGE,
 * which names the line. */
json_t *vfm_yaml_parse(const char *text, size_t len, const char *name, struct vfm_err *err);
/* The same of a file of at most `max` bytes.  VFM_EINPUT: it cannot be read. */
json_t *vfm_yaml_load(const char *path, size_t max, struct vfm_err *err);

#endif
