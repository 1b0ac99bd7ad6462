"""Looking into models: inspection, checks, the workbook."""
