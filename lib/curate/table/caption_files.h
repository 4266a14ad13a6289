/* caption_files.h - finds the captions that lie next to media files, for vfm-curate probe.
 *
 * A file DIR/clip.mp4 gets the caption of
 *
 *   - DIR/clip.txt, DIR/clip.caption or DIR/clip.json
 *   - the tables of vfm_caption_table_names in DIR, or in up to two folders above it that its name contains; names in a
 *     table are relative to its folder, or to its subfolder videos, or as the file was named, or absolute
 *   - two lists in such a folder: videos.txt (video.txt, images.txt, image.txt) and prompt.txt (prompts.txt,
 *     captions.txt, caption.txt)
 *
 * Several sources with the same caption are no fault; different captions are.  Used by one thread.
 */
#ifndef VFM_CURATE_TABLE_CAPTION_FILES_H
#define VFM_CURATE_TABLE_CAPTION_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"

struct vfm_caption_files;

/* `from`: NULL searches as above; a suffix such as ".txt" reads only CLIP.txt; anything else is the path of the only
 * table, in which a name without a folder also means a file in any folder.  `by_line` as in caption_value.h.  The
 * strings must outlive *c.  VFM_EUSAGE: the table cannot be read. */
int vfm_caption_files_open(struct vfm_caption_files **c, const char *from, bool by_line, struct vfm_err *err);
void vfm_caption_files_close(struct vfm_caption_files *c); /* accepts NULL */

/* Sets *caption, which the caller owns, to that of a media file; NULL: there is none.  VFM_EINPUT: a caption of the
 * file is at fault; err names it.  VFM_EUSAGE: a table is; VFM_EENV. */
int vfm_caption_files_find(struct vfm_caption_files *c, const char *src, json_t **caption, struct vfm_err *err);

/* Returns whether the name of a file is that of a caption file or table.  If so, keeps it for vfm_caption_files_rest.
 * `named`: the user named this file; else it was found in a folder. */
bool vfm_caption_files_keep(struct vfm_caption_files *c, const char *path, bool named);

/* Call after the last find.  Returns the next kept file that was named and gave no caption, or NULL at the end. */
const char *vfm_caption_files_rest(struct vfm_caption_files *c);

/* Call after the last find.  Appends lines about what was found, or nothing; adds the kept files that were found in
 * folders and are no captions to *left_out. */
void vfm_caption_files_report(struct vfm_caption_files *c, struct vfm_buf *lines, struct vfm_named *left_out);

#endif
