"""Extensions: what runs beside the pipelines and serves components. file_storage."""
