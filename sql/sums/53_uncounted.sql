-- Leave out what the view uncounted_time names. All events are read together: a later slice may replace another.
INSERT INTO uncounted FROM new_time SEMI JOIN uncounted_time USING (writer, seq);
DELETE FROM new_slice USING uncounted AS u WHERE new_slice.writer = u.writer AND new_slice.seq = u.seq;
DELETE FROM new_other USING uncounted AS u WHERE new_other.writer = u.writer AND new_other.seq = u.seq;
CREATE OR REPLACE TEMP TABLE new_edge AS FROM time_edge;
